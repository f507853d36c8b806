"""Who uses the GPUs, for callers that ask often: one look serves all, and nobody waits for long.

In: what looks (usage/node.py). Out: the latest look, if it is at most a few seconds old. There is
no look while nobody asks. Each look has its own thread, one at a time; callers wait for it up to
the deadline, and then get no answer. If a look hangs, its thread is left alone, and the next caller
waits for the same look.
"""

import threading
import time
from collections.abc import Callable

import structlog

from dra_driver.errors import DriverError
from dra_driver.host.worker import LogOnce
from dra_driver.usage.model import NodeUse

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
        self._changed = threading.Condition()
        self._latest: tuple[float, NodeUse] | None = None  # when it was made, and the look
        self._is_looking = False
        self._once = LogOnce()

    def current(self) -> NodeUse | None:
        """Return who uses the GPUs, or used them some seconds ago; None if not known in time."""
        with self._changed:
            if (usage := self._fresh()) is not None:
                return usage
            if not self._is_looking:
                self._is_looking = True
                threading.Thread(target=self._run, name="usage", daemon=True).start()
            self._changed.wait_for(lambda: not self._is_looking, self._deadline_seconds)
            return self._fresh()

    def _fresh(self) -> NodeUse | None:
        if self._latest is None:
            return None
        at, use = self._latest
        return use if self._clock() - at <= self._fresh_seconds else None

    def _run(self) -> None:
        usage, reason = None, ""
        try:
            usage = self._look()
        except DriverError as error:
            reason = str(error)
        finally:
            with self._changed:
                self._is_looking = False
                if usage is not None:
                    self._latest = self._clock(), usage
                self._changed.notify_all()
        if not reason:
            self._once.forget()
        elif self._once.is_new(reason):
            log.warning("usage of gpus not known", reason=reason)
