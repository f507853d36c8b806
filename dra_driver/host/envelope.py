"""The envelope of the files that this driver keeps, so that half a file is never believed.

In and out: a JSON payload and its bytes, `{"version":3,"sha256":"…","payload":{…}}` on one line.
The checksum is over the payload's bytes as they are stored. Readers skip unknown payload fields, so
newer writers may add some (dra-driver-nvidia-gpu#1080); a change of meaning needs a new version. A
newer version's file is not damaged: after a roll-back, or beside a newer driver, it is kept.
"""

import json
import re
import threading
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, TypeVar

import msgspec

from dra_driver.errors import StateError, VersionError

MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""The errors of reading a payload of another form, such as infinity for a whole number."""

T = TypeVar("T")

_VERSION = 3
"""Versions 1 and 2 were never released: a driver that reads them leaves this one's files alone."""

_READING = threading.Lock()
"""msgspec (0.22) analyses a type when it first reads one. A thread that reads the same type
meanwhile finds half of that, and the process ends by SIGSEGV."""

_UNKNOWN = re.compile(r"Invalid (?:enum )?value ")
"""How msgspec's error begins if it knows no such member, as of a newer version."""

_ENVELOPE = re.compile(
    rb'\{"version":([0-9]{1,9}),(?:"sha256":"([0-9a-f]{64})","payload":(\{.*\})\}\n\Z)?', re.DOTALL
)


def seal(payload: Mapping[str, object] | msgspec.Struct) -> bytes:
    """Return the bytes of a file with this payload; the same payload gives the same bytes."""
    try:
        body = msgspec.json.encode(payload)
    except UnicodeEncodeError:  # half of a surrogate pair, as in the name of a file
        body = json.dumps(msgspec.to_builtins(payload)).encode()
    digest = sha256(body).hexdigest().encode()
    return b'{"version":%d,"sha256":"%s","payload":%s}\n' % (_VERSION, digest, body)


def unseal(data: bytes) -> Mapping[str, Any]:
    """Return the payload that was sealed into these bytes.

    Raises VersionError if they are of a newer version, and StateError if they are of a former one,
    or damaged.
    """
    match = _ENVELOPE.match(data)
    if match is not None and (version := int(match[1])) != _VERSION:
        refusal = VersionError if version > _VERSION else StateError
        raise refusal(f"it has version {version}, but this driver reads version {_VERSION}")
    if match is None or match[3] is None:
        raise StateError("it is cut off, or not a file of this driver")
    digest, body = match[2].decode(), match[3]
    if sha256(body).hexdigest() != digest:
        raise StateError("its checksum does not match its content")
    try:
        payload: Mapping[str, Any] = json.loads(body)
    except (ValueError, RecursionError) as error:  # nested deeper than the stack
        raise StateError(f"its content is not valid JSON: {error}") from error
    return payload


def value_of(payload: object, of: type[T], what: str) -> T:
    """Return the value that a payload describes.

    Raises VersionError if it has a member of an enumeration or union that is not known here, and
    StateError if it has another form; `what` says what it should be.
    """
    try:
        with _READING:
            return msgspec.convert(payload, of)
    except msgspec.ValidationError as error:
        if _UNKNOWN.match(str(error)):
            raise VersionError(f"it has what this version does not know: {error}") from error
        raise StateError(f"its content is not that of {what}: {error}") from error
    except MALFORMED as error:  # half of a surrogate pair, for one
        raise StateError(f"its content is not that of {what}: {error!r}") from error
