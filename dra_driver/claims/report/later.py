"""Posts Events on a thread of its own, so that no call and no look waits for the API server.

In: work to do, in a bounded queue. If the API server cannot be reached, work is repeated after a
while; what the API server refuses is dropped. At the driver's end, queued work is still tried once.
An Event that is lost then is not missed: logs and `dra-driver status` have the same facts.
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
    """A thread that does work in order, and repeats it after `retry_seconds` without an answer."""

    def __init__(self, *, retry_seconds: float = 15.0) -> None:
        super().__init__("later-events")
        self._retry_seconds = retry_seconds
        self._waiting: queue.Queue[Work | None] = queue.Queue(MOST_WAITING)

    def do(self, work: Work) -> None:
        """Queue work. Never blocks: if too much is waiting, the work is dropped."""
        try:
            self._waiting.put_nowait(work)
        except queue.Full:
            log.debug("event not posted", reason="too many wait")

    def ring(self) -> None:
        """Wake the thread if it waits for work."""
        with suppress(queue.Full):  # then the thread is awake
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
                if pause is not None:  # other work need not wait for it
                    late.append(each)
                    due = monotonic() + pause
            if len(late) > MOST_WAITING:
                log.warning("events not created", count=len(late) - MOST_WAITING)
                late = late[-MOST_WAITING:]

    def _tried(self, work: Work) -> float | None:
        """Do the work; return after how many seconds to repeat it, or None for never."""
        try:
            work()
        except UnavailableError as error:
            log.debug("event not posted yet", reason=str(error))
            return max(self._retry_seconds, error.retry_after or 0.0)
        except DriverError as error:
            log.debug("event not posted", reason=str(error))
        return None
