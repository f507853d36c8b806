"""Posts Events in a thread of its own, so that no call and no look waits for the API server.

In: what is to be done. Out: nothing but that it is done; again after a while if the API server was
away, while what it refuses harms none. What waits is bounded, and done at the driver's end, too. If
the API server is away then it stays untold, as logs and `dra-driver status` say it anyway.
"""

import queue
from collections.abc import Callable
from contextlib import suppress

import structlog

from dra_driver.errors import DriverError, UnavailableError
from dra_driver.host.worker import Worker

log = structlog.get_logger()

_MOST_WAITING = 1000


class Later(Worker):
    """A thread that does one thing after the other; again in `retry_seconds` without an answer."""

    def __init__(self, *, retry_seconds: float = 15.0) -> None:
        super().__init__("later-events")
        self._retry_seconds = retry_seconds
        self._waiting: queue.Queue[Callable[[], None] | None] = queue.Queue(_MOST_WAITING)

    def do(self, work: Callable[[], None]) -> None:
        """Have something done. Never blocks."""
        try:
            self._waiting.put_nowait(work)
        except queue.Full:
            log.debug("event not posted", reason="too many wait")

    def ring(self) -> None:
        """Wake the thread, which waits for work."""
        with suppress(queue.Full):  # then it is awake
            self._waiting.put_nowait(None)

    def _run(self) -> None:
        while (work := self._waiting.get()) or not self._stop.is_set():
            if work is not None:
                self._try(work)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except UnavailableError as error:
            log.debug("event not posted yet", reason=str(error))
            self.do(work)
            self._stop.wait(max(self._retry_seconds, error.retry_after or 0.0))
        except DriverError as error:
            log.debug("event not posted", reason=str(error))
