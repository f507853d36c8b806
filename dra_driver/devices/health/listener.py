"""The thread that waits for NVML's events, and asks for a look at the GPUs after one.

In: a function that waits (devices/session.py). Out: events to the tracker, and a look soon after an
event that no program can cause, since the regular looks would be too slow for a lost GPU. A program
can cause events as fast as it likes, so those events are ignored, which costs little.
"""

from collections.abc import Callable

import structlog

from dra_driver.devices.model import GpuEvent
from dra_driver.errors import DriverError, LostError, TransientError
from dra_driver.host.worker import LogOnce, Worker

log = structlog.get_logger()

WAIT_SECONDS = 1.0
"""The length of one wait: NVML can be closed only between two."""

CLOSED_SECONDS = 0.5
"""The time until the next try while NVML is closed."""

REFUSED_SECONDS = 5.0
"""The time until the next try after NVML refused."""

LEAST_BETWEEN_LOOKS = 5.0
"""The least time between two looks because of events: an event may come again and again."""


class Listener(Worker):
    """Waits for events until it is stopped."""

    def __init__(
        self,
        wait: Callable[[float], GpuEvent | None],
        hear: Callable[[GpuEvent], bool],
        *,
        look: Callable[[], None],
        asked: Callable[[], object] = lambda: False,
        clock: Callable[[], float],
    ) -> None:
        """Take the functions that give and take events.

        `wait` returns the next event, or None if there is none within the given seconds. `hear`
        takes it and says whether it is time to look. `asked` says whether somebody asks for a look.
        The clock is monotonic, in seconds.
        """
        super().__init__("gpu-events")
        self._next_event = wait
        self._hear = hear
        self._look = look
        self._asked = asked
        self._clock = clock
        self._looked_at = float("-inf")
        self._owes_look = False
        self._once = LogOnce()

    def _run(self) -> None:
        while not self._stop.is_set():
            pause = self._listen()
            self._owes_look |= bool(self._asked())
            now = self._clock()
            if self._owes_look and now - self._looked_at >= LEAST_BETWEEN_LOOKS:
                self._owes_look, self._looked_at = False, now
                self._look()
            if pause:
                self._stop.wait(pause)

    def _listen(self) -> float:
        """Wait once; return for how many seconds to pause before the next wait."""
        try:
            event = self._next_event(WAIT_SECONDS)
        except TransientError:
            return CLOSED_SECONDS
        except LostError:
            self._owes_look = True
            return CLOSED_SECONDS  # NVML may report this again and again
        except DriverError as error:
            if self._once.is_new(str(error)):
                log.warning("gpu events not received", reason=str(error))
            return REFUSED_SECONDS
        self._once.forget()
        if event is not None:
            self._owes_look |= self._hear(event)
        return 0.0
