"""The events of one watch request, as they come in.

The response has one JSON object per line. Kubernetes API concepts, "Efficient detection of
changes": the server ends a watch whenever it likes, and reports an expired resourceVersion as an
event of type ERROR. Another thread may close the stream at any moment; the reader then simply ends.
"""

from collections.abc import Iterator
from contextlib import suppress

from dra_driver.errors import UnavailableError
from dra_driver.kube.connections import BrokenError, Response
from dra_driver.kube.resource import Call
from dra_driver.kube.responses import error_in_event, parsed

_LONGEST_EVENT = 16 * 1024 * 1024
"""Bytes of one event: etcd stores at most 1.5 MiB of an object by default."""


class WatchStream:
    """Iterate to get events; `close()` from any thread ends the iteration at once."""

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
