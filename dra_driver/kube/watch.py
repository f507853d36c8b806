"""List, then watch forever: one callback gets every change of a selection of objects.

In: a kind and its selectors. Out: `Listed` once at the start and after each gap, `Changed` for
every event after it. As in Kubernetes API concepts, "Efficient detection of changes": begin at a
list's resourceVersion, follow bookmarks, list again after 410 Gone, and open a new stream when the
server ends one. A refusal (403, 429, 5xx) is retried with exponential back-off; the stream is
closed at once on stop(). The client library's own informer does neither.
"""

import threading
from collections.abc import Callable, Mapping

import structlog
from msgspec import Struct

from dra_driver.errors import ApiError, DriverError, GoneError, UnavailableError
from dra_driver.host.worker import LogOnce, Worker
from dra_driver.kube.client import KubeClient
from dra_driver.kube.fields import at, entries
from dra_driver.kube.resource import Resource
from dra_driver.kube.responses import WatchStream

log = structlog.get_logger()

_LIST_SECONDS = 30.0
_SERVER_SECONDS = 300
"""How long the server is asked to keep a stream open; client-go asks for 5 to 10 minutes."""

_HEALTHY_SECONDS = 10.0
"""A stream that lasted this long did not fail, even if nothing happened in it."""


class Backoff:
    """Delays of `first`, doubling up to `most` seconds, each shortened by up to half at random.

    So, as Kubernetes API conventions ask, a thousand nodes do not come back to a restarted API
    server at the same moment.
    """

    def __init__(self, *, first: float, most: float, random: Callable[[], float]) -> None:
        """Take the first and the longest delay; `random` gives numbers in [0, 1)."""
        self._first = first
        self._most = most
        self._random = random
        self._next = first

    def delay(self) -> float:
        """Return the seconds to wait now, and lengthen the next delay."""
        delay = self._next * (1 - self._random() / 2)
        self._next = min(self._next * 2, self._most)
        return delay

    def reset(self) -> None:
        """Start with the first delay again: something worked."""
        self._next = self._first


class Listed(Struct, frozen=True, kw_only=True):
    """All selected objects: at the start, or after a gap in the watch."""

    items: tuple[dict[str, object], ...]


class Changed(Struct, frozen=True, kw_only=True):
    """One event; `type` is ADDED, MODIFIED or DELETED."""

    type: str
    object: dict[str, object]


class Watch(Worker):
    """Follows one selection on a separate thread. Our own errors are retried."""

    def __init__(
        self,
        api: KubeClient,
        resource: Resource,
        *,
        selectors: Mapping[str, str],
        tell: Callable[[Listed | Changed], None],
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        """Take what to follow; `start` begins.

        `selectors` are the query parameters `fieldSelector` and `labelSelector`. `tell` is called
        on the thread, in order, and must not block. `clock` is monotonic, in seconds; `random`
        returns numbers in [0, 1), for jitter.
        """
        super().__init__(f"watch-{resource.plural}")
        self._api = api
        self._resource = resource
        self._selectors = dict(selectors)
        self._tell = tell
        self._clock = clock
        self._backoff = Backoff(first=0.5, most=15.0, random=random)
        self._random = random
        self._version: str | None = None
        self._once = LogOnce()
        self._lock = threading.Lock()
        self._stream: WatchStream | None = None

    def stop(self, timeout: float) -> bool:
        """Close the stream and end the thread within `timeout` seconds; return whether it ended."""
        self._stop.set()
        with self._lock:
            if self._stream is not None:
                self._stream.close()
        return super().stop(timeout)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._stop.wait(self._turn())

    def _turn(self) -> float:
        """List if needed and follow one stream to its end; return how many seconds to wait then."""
        try:
            if self._version is None:
                self._list()
            return self._follow()
        except GoneError:
            # Ordinary after a long break; back-off all the same, in case listing does not help.
            self._version = None
            return self._backoff.delay()
        except DriverError as error:
            if isinstance(error, ApiError):
                self._version = None
            if self._stop.is_set():
                return 0
            if self._once.is_new(str(error)):
                log.warning("watch interrupted", resource=str(self._resource), error=str(error))
            asked = error.retry_after if isinstance(error, UnavailableError) else None
            return max(asked or 0.0, self._backoff.delay())

    def _list(self) -> None:
        answer = self._api.list(self._resource, query=self._selectors, timeout=_LIST_SECONDS)
        version = at(answer, "metadata", "resourceVersion")
        if not isinstance(version, str):
            raise UnavailableError(f"the list of {self._resource} has no resourceVersion")
        items = entries(answer, "items")
        self._tell(Listed(items=tuple(item for item in items if isinstance(item, dict))))
        self._version = version

    def _follow(self) -> float:
        """Report the events of one stream; return how many seconds to wait before the next."""
        seconds = int(_SERVER_SECONDS * (1 + self._random()))
        query = self._selectors | {
            "resourceVersion": self._version or "",
            "timeoutSeconds": str(seconds),
        }
        began = self._clock()
        stream = self._api.watch(self._resource, query=query)
        with self._lock:
            self._stream = stream
            if self._stop.is_set():
                stream.close()
        if self._once.forget():
            log.info("watch resumed", resource=str(self._resource))
        lively = False
        try:
            for event in stream:
                lively = True
                self._backoff.reset()
                self._take(event)
        finally:
            with self._lock:
                self._stream = None
        if lively or self._clock() - began >= _HEALTHY_SECONDS:
            self._backoff.reset()
            return 0
        return self._backoff.delay()

    def _take(self, event: dict[str, object]) -> None:
        told, kind = event.get("object"), event.get("type")
        version = at(told, "metadata", "resourceVersion")
        if isinstance(version, str):
            self._version = version
        if isinstance(told, dict) and kind in ("ADDED", "MODIFIED", "DELETED"):
            self._tell(Changed(type=str(kind), object=told))
