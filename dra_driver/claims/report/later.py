"""Posts Events in a thread of its own, so that no call and no look waits for the API server.

In: what is to be done. Out: nothing but that it is done; again after a while if the API server was
away, while what it refuses harms none. What waits is bounded, and done at the driver's end, too. If
the API server is away then it stays untold, as logs and `dra-driver status` say it anyway.
"""

import queue
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

import structlog

from dra_driver.errors import DriverError, UnavailableError
from dra_driver.host.worker import Worker

log = structlog.get_logger()

MOST_WAITING = 1000

Work = Callable[[], None]


class Later(Worker):
    """A thread that does one thing after the other; again in `retry_seconds` without an answer."""

    def __init__(self, *, retry_seconds: float = 15.0) -> None:
        super().__init__("later-events")
        self._retry_seconds = retry_seconds
        self._waiting: queue.Queue[Work | None] = queue.Queue(MOST_WAITING)

    def do(self, work: Work) -> None:
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
        late: list[Work | None] = []
        due = 0.0
        while True:
            try:
                works = [self._waiting.get(timeout=max(0.0, due - monotonic()) if late else None)]
            except queue.Empty:
                works, late = late, []
            for each in works:
                if each is None:  # `ring`
                    if self._stop.is_set():
                        return
                    continue
                pause = self._tried(each)
                if pause is not None:  # the others need not wait for it
                    late.append(each)
                    due = monotonic() + pause
            if len(late) > MOST_WAITING:
                log.warning("events not created", count=len(late) - MOST_WAITING)
                late = late[-MOST_WAITING:]

    def _tried(self, work: Work) -> float | None:
        """Do something; return after how many seconds to do it again, None for never."""
        try:
            work()
        except UnavailableError as error:
            log.debug("event not posted yet", reason=str(error))
            return max(self._retry_seconds, error.retry_after or 0.0)
        except DriverError as error:
            log.debug("event not posted", reason=str(error))
        return None
