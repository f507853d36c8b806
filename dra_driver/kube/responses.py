"""What an HTTP response of the API server means: an object, events, or one of our errors.

An error's text gives the cause first and then what to do, because it may end in a pod's events. As
in Kubernetes API conventions, "Response Status Kind", a 404 counts as "this object does not exist"
only with a Status of reason NotFound that names the object: a server without the API answers 404,
too, and a claim that merely cannot be seen must not count as gone.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.client import responses as phrases
from typing import Any

import msgspec

from dra_driver.errors import (
    AccessError,
    ApiError,
    DriverError,
    GoneError,
    InvalidError,
    NotFoundError,
    StaleError,
    UnavailableError,
)
from dra_driver.kube.connections import BrokenError, Response
from dra_driver.kube.resource import Call
from resource_nvidia_com.problems import keep_duplicates

_LONGEST_TEXT = 1024
"""Characters of a server's message that are kept: enough for a field error, not for HTML."""

_LONGEST_EVENT = 16 * 1024 * 1024
"""Bytes of one event: etcd stores at most 1.5 MiB of an object by default."""

_RETRY_AFTER_CAP = 300.0
"""The longest Retry-After that is obeyed, in seconds; a mistake must not stop us for a day."""

_DEEPEST = 100
_STRUCTURE = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_SECONDS = re.compile(r"[0-9]{1,20}")

_BUSY = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})

_REFUSALS: Mapping[int, type[ApiError]] = {
    HTTPStatus.BAD_REQUEST: InvalidError,
    HTTPStatus.UNAUTHORIZED: AccessError,
    HTTPStatus.FORBIDDEN: AccessError,
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.CONFLICT: StaleError,
    HTTPStatus.GONE: GoneError,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: InvalidError,
    HTTPStatus.UNPROCESSABLE_ENTITY: InvalidError,
}


def parsed(body: bytes, *, keeps_duplicates: bool = False) -> Any:
    """Return the value of a JSON text, if asked with keys that stand twice (`keep_duplicates`).

    The API server accepts configs that are nested 10,000 deep, and Python reads some 1,000. A
    person who may create a claim must not be able to make it, or a list with it, unreadable. So
    what is nested deeper than any object of the API counts as null. A text that is not JSON is a
    ValueError.
    """

    def read(text: bytes) -> Any:
        if keeps_duplicates:
            return json.loads(text, object_pairs_hook=keep_duplicates)
        return msgspec.json.decode(text)

    try:
        return read(body)
    except RecursionError:
        try:
            return read(_shallow(body))
        except RecursionError as error:
            raise ValueError("it is nested too deep") from error


def _shallow(body: bytes) -> bytes:
    kept: list[bytes] = []
    depth = done = 0
    for token in _STRUCTURE.finditer(body):
        if token[0] in b"[{":
            depth += 1
            if depth == _DEEPEST + 1:
                kept.append(body[done : token.start()])
        elif token[0] in b"]}":
            if depth == _DEEPEST + 1:
                kept.append(b"null")
                done = token.end()
            depth -= 1
    return b"".join([*kept, body[done:]])


def object_in(call: Call, body: bytes) -> dict[str, object]:
    """Return the JSON object in a successful response.

    Raises UnavailableError if the body is not a JSON object, so that it is not the API server's.
    """
    try:
        # The API server returns opaque parameters as they were written, even with duplicate keys;
        # only these need Python's reader, which takes four times as long.
        value = parsed(body, keeps_duplicates=b'"parameters"' in body)
    except ValueError as error:
        raise UnavailableError(
            f"cannot {call}: the response is not JSON; check that the configured address is that "
            "of the Kubernetes API server, and not of a proxy"
        ) from error
    if not isinstance(value, dict):
        raise UnavailableError(f"cannot {call}: the response is JSON, but not an object")
    return value


def error_in(
    call: Call, status: int, body: bytes, *, retry_after: str | None = None
) -> DriverError:
    """Return the error for an unsuccessful response."""
    return _error(call, status, _status_object(body), retry_after)


def error_in_event(call: Call, status_object: Mapping[str, object]) -> DriverError:
    """Return the error for a Status object that came as a watch event of type ERROR."""
    code = status_object.get("code")
    status = code if isinstance(code, int) else HTTPStatus.INTERNAL_SERVER_ERROR
    return _error(call, status, status_object, None)


def _error(
    call: Call, status: int, status_object: Mapping[str, object], retry_after: str | None
) -> DriverError:
    said = str(status_object.get("message") or "").strip()[:_LONGEST_TEXT]
    said = said or phrases.get(status, "no reason given")
    if status in _BUSY or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        trouble = "is busy" if status in _BUSY else "failed"
        return UnavailableError(
            f"cannot {call}: the API server {trouble} ({status}: {said})",
            retry_after=_seconds(retry_after, status_object),
        )
    if status == HTTPStatus.NOT_FOUND and not _names_an_object(status_object):
        return ApiError(
            f"cannot {call}: the API server does not serve {call.resource.api_version}; "
            "this driver needs Kubernetes 1.34 or newer, where nothing switches this API off",
            status=status,
        )
    return _REFUSALS.get(status, ApiError)(
        f"cannot {call}: {_advice(call, status, said)}", status=status
    )


def _names_an_object(status_object: Mapping[str, object]) -> bool:
    """Tell a missing object from a missing API, whose reason can be NotFound as well."""
    details = status_object.get("details")
    return (
        status_object.get("reason") == "NotFound"
        and isinstance(details, dict)
        and bool(details.get("name"))
    )


def _advice(call: Call, status: int, said: str) -> str:
    """Return the server's words, and what to do if the object is not to blame."""
    if status == HTTPStatus.UNAUTHORIZED:
        return (
            f"the API server does not accept this driver's credentials ({said}); check that its "
            "ServiceAccount token or kubeconfig is mounted and not expired"
        )
    if status == HTTPStatus.FORBIDDEN:
        return (
            f"{said}; if RBAC denied it, grant the verb {call.verb!r} on {call.permission} to this "
            "driver's ServiceAccount or to the kubeconfig's user"
        )
    return said


def _status_object(body: bytes) -> Mapping[str, object]:
    """Read the body as a Status object; anything else becomes one that has only a message."""
    try:
        value = parsed(body)
    except ValueError:
        return {"message": body[:_LONGEST_TEXT].decode(errors="replace")}
    return value if isinstance(value, dict) else {}


def _seconds(header: str | None, status_object: Mapping[str, object]) -> float | None:
    """Read Retry-After as whole seconds (the only form the API server uses), else the Status."""
    details = status_object.get("details")
    in_status = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    for text in (header, in_status):
        if isinstance(text, int) or (isinstance(text, str) and _SECONDS.fullmatch(text)):
            return min(max(float(text), 0.0), _RETRY_AFTER_CAP)
    return None


class WatchStream:
    """The events of one watch request, one JSON object per line; iterate to get them.

    Kubernetes API concepts, "Efficient detection of changes": the server ends a watch whenever it
    likes, and reports an expired resourceVersion as an event of type ERROR. `close()` from any
    thread ends the iteration at once.
    """

    def __init__(self, call: Call, response: Response) -> None:
        """Take over a response whose headers were read and whose body was not."""
        self._call = call
        self._response = response
        self._closed = False

    def __iter__(self) -> Iterator[dict[str, object]]:
        """Yield each event until the server or `close()` ends the stream.

        Raises GoneError if the resourceVersion is too old: list again. Otherwise ApiError or
        UnavailableError, as the server's Status object says, or if the connection broke.
        """
        try:
            for line in self._lines():
                yield self._event(line)
        finally:
            self._response.close()

    def close(self) -> None:
        """End the stream: a reader blocked in another thread wakes up and stops."""
        self._closed = True
        with suppress(OSError):  # it ended by itself in the meantime
            self._response.shutdown()

    def _lines(self) -> Iterator[bytes]:
        rest = b""
        try:
            for chunk in self._response.chunks():
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > _LONGEST_EVENT:
                    raise BrokenError(f"an event has more than {_LONGEST_EVENT >> 20} MiB")
                for line in lines:
                    if self._closed:
                        return
                    if line:
                        yield line
        except TimeoutError:
            # Silence for longer than bookmarks are apart: start a new watch, which is cheap.
            return
        except OSError as error:
            if not self._closed:
                raise UnavailableError(
                    f"cannot {self._call}: the stream broke ({error})"
                ) from error

    def _event(self, line: bytes) -> dict[str, object]:
        try:
            event = parsed(line)
        except ValueError as error:
            raise UnavailableError(f"cannot {self._call}: an event is not JSON") from error
        if not (isinstance(event, dict) and isinstance(event.get("object"), dict)):
            raise UnavailableError(f"cannot {self._call}: an event has no object")
        if event.get("type") == "ERROR":
            raise error_in_event(self._call, event["object"])
        return event
