"""Waits that a signal ends: the first one asks a run to stop, and clean-up continues undisturbed.

In: Ctrl-C, SIGTERM, or the end of the terminal. Out: a `Stop`, which runners check wherever they
wait. A signal's handler raises nothing itself: an exception could come in the middle of removing
what a run has made, and that would be left behind.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from msgspec import Struct

Say = Callable[[str], None]
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop(Struct):
    """Whether the run is to end."""

    is_asked: bool = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if the run is to end."""
        if self.is_asked:
            raise KeyboardInterrupt

    def wait(self, is_so: Callable[[], bool], seconds: float, every: float) -> bool:
        """Wait until a condition holds, at most `seconds`; return whether it holds."""
        end = time.monotonic() + seconds
        while not is_so():
            self.check()
            if time.monotonic() > end:
                return False
            time.sleep(every)
        return True


@contextmanager
def stoppable(say: Say) -> Iterator[Stop]:
    """Let signals end waits of this `Stop`. Signals that nohup has disabled stay ignored.

    For the main thread.
    """
    stop = Stop()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        again, stop.is_asked = stop.is_asked, True
        with suppress(RuntimeError, OSError):  # it came during output, or the terminal is gone
            if again:
                say("cleaning up; this takes a moment")
            else:
                say(f"{signal.Signals(number).name}: ending what runs, and cleaning up")

    before = {
        number: signal.signal(number, on_signal)
        for number in _SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
