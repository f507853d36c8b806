"""The envelope of the files that this driver keeps, so that half a file is never believed.

In and out: a JSON payload and its bytes, `{"version":1,"sha256":"…","payload":{…}}` on one line.
The checksum is over the payload's bytes as they are stored. Readers skip payload fields they do not
know, so a newer writer may add some; a change of meaning takes a new version.
"""

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from dra_driver.errors import StateError

_VERSION = 1
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

    Raises:
        StateError: they are damaged, or of a version that is not known here.
    """
    match = _ENVELOPE.fullmatch(data)
    if match is None:
        raise StateError("it is cut off, or not a file of this driver")
    version, digest, body = int(match[1]), match[2].decode(), match[3]
    if sha256(body).hexdigest() != digest:
        raise StateError("its checksum does not match its content")
    if version != _VERSION:
        raise StateError(f"it has version {version}, but this driver reads only version {_VERSION}")
    try:
        payload: Mapping[str, Any] = json.loads(body)
    except ValueError as error:
        raise StateError(f"its content is not valid JSON: {error}") from error
    return payload
