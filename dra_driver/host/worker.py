"""A thread that works until it is told to stop, what such threads log once, and whom they call."""

import threading
from collections.abc import Callable, Container
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Worker:
    """What the long-lived threads have in common: `_run` continues until `_stop` is set.

    An exception of `_run` ends the process, through threading.excepthook: it is a fault in the
    program. The end of the process does not wait for these threads: a call into NVML may hang.
    """

    def __init__(self, name: str) -> None:
        self._stop = threading.Event()
        self._bell = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, once only; it looks immediately."""
        self._thread.start()

    def ring(self) -> None:
        """Wake the thread, because something may have changed; never blocks."""
        self._bell.set()

    def stop(self, timeout: float) -> bool:
        """Tell the thread to end, wait at most `timeout` seconds; return whether it has ended."""
        self._stop.set()
        self.ring()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _wait(self, seconds: float) -> None:
        """Wait for `ring`, `stop` or the given time."""
        self._bell.wait(seconds)
        # Here, not before the wait: a `ring` during the next look then ends the next wait.
        self._bell.clear()

    def _run(self) -> None:
        raise NotImplementedError


class LogOnce:
    """Tells which reasons are new, so that a lasting one is logged once."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def is_new(self, reason: str, about: str = "") -> bool:
        """Note a reason that concerns this; tell whether the last one was different."""
        before, self._last[about] = self._last.get(about), reason
        return reason != before

    def forget(self, about: str = "") -> bool:
        """Have the next reason logged in any case; tell whether there was one before."""
        return self._last.pop(about, None) is not None

    def keep(self, those: Container[str]) -> None:
        """Forget the reasons that concern anything but those."""
        self._last = {about: reason for about, reason in self._last.items() if about in those}


class Listeners(Generic[P]):
    """Whom to call when something has changed, in the order of adding; no call may block."""

    def __init__(self) -> None:
        self._calls: list[Callable[P, object]] = []

    def add(self, *calls: Callable[P, object]) -> None:
        """Add calls; not once threads run."""
        self._calls += calls

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Make all calls."""
        for call in self._calls:
            call(*args, **kwargs)
