"""Who uses the GPUs, for callers that ask often: one look serves all, and nobody waits for long.

In: what looks (usage/node.py), which gives up on GPUs that do not answer. Out: the latest look, if
it is at most a few seconds old. There is no look while nobody asks. Callers wait for the one that
looks up to the deadline, and then get no answer.
"""

import threading
import time
from collections.abc import Callable, Iterator

import structlog

from dra_driver.errors import DriverError
from dra_driver.host.worker import LogOnce
from dra_driver.ops.metrics import UsageSeries
from dra_driver.usage.model import NodeUse
from dra_driver.usage.series import series

FRESH_SECONDS = 5.0
"""How old a look may be."""

DEADLINE_SECONDS = 5.0
"""How long a caller waits for a look; Prometheus gives a scrape ten seconds."""

log = structlog.get_logger()


class Sampler:
    """Keeps the latest look. For any thread."""

    def __init__(
        self,
        look: Callable[[], NodeUse],
        *,
        clock: Callable[[], float] = time.monotonic,
        fresh_seconds: float = FRESH_SECONDS,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._look = look
        self._clock = clock
        self._fresh_seconds = fresh_seconds
        self._deadline_seconds = deadline_seconds
        self._lock = threading.Lock()
        self._latest: tuple[float, NodeUse] | None = None  # when it was made, and the look
        self._once = LogOnce()

    def current(self) -> NodeUse | None:
        """Return who uses the GPUs, or used them some seconds ago; None if not known in time."""
        if not self._lock.acquire(timeout=self._deadline_seconds):
            return None
        try:
            if self._latest is None or self._clock() - self._latest[0] > self._fresh_seconds:
                self._latest = None
                self._latest = self._clock(), self._look()
            self._once.forget()
            return self._latest[1]
        except DriverError as error:
            if self._once.is_new(str(error)):
                log.warning("usage of gpus not known", reason=str(error))
            return None
        finally:
            self._lock.release()

    def series(self) -> Iterator[UsageSeries]:
        """Return who uses the GPUs, for a scrape."""
        return series(self.current())
