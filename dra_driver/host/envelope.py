"""The envelope of the files that this driver keeps, so that half a file is never believed.

In and out: a JSON payload and its bytes, `{"version":1,"sha256":"…","payload":{…}}` on one line.
The checksum is over the payload's bytes as they are stored. Readers skip payload fields they do not
know, so a newer writer may add some; a change of meaning takes a new version. What a newer version
wrote is not damaged: after a roll-back, or beside a newer driver, it is left to who understands it.
"""

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from dra_driver.errors import StateError, VersionError

MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What reading a payload raises that has another form: infinity, for one, is no whole number."""

_VERSION = 1
_START = re.compile(rb'\{"version":([0-9]{1,9}),')
_ENVELOPE = re.compile(
    rb'\{"version":([0-9]{1,9}),"sha256":"([0-9a-f]{64})","payload":(\{.*\})\}\n', re.DOTALL
)


def seal(payload: Mapping[str, object]) -> bytes:
    """Return the bytes of a file with this payload; the same payload gives the same bytes."""
    body = json.dumps(payload, separators=(",", ":")).encode()
    digest = sha256(body).hexdigest().encode()
    return b'{"version":%d,"sha256":"%s","payload":%s}\n' % (_VERSION, digest, body)


def unseal(data: bytes) -> Mapping[str, Any]:
    """Return the payload that was sealed into these bytes.

    Raises VersionError if they are of a newer version, and StateError if they are damaged.
    """
    start = _START.match(data)
    if start is not None and int(start[1]) > _VERSION:
        raise VersionError(
            f"it has version {int(start[1])}, but this driver reads only version {_VERSION}"
        )
    match = _ENVELOPE.fullmatch(data)
    if match is None or int(match[1]) != _VERSION:
        raise StateError("it is cut off, or not a file of this driver")
    digest, body = match[2].decode(), match[3]
    if sha256(body).hexdigest() != digest:
        raise StateError("its checksum does not match its content")
    try:
        payload: Mapping[str, Any] = json.loads(body)
    except (ValueError, RecursionError) as error:  # nested deeper than the stack
        raise StateError(f"its content is not valid JSON: {error}") from error
    return payload
