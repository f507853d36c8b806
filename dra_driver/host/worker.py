"""A thread that works until it is told to stop, and what such threads log once."""

import threading
from collections.abc import Container


class Worker:
    """What the long-lived threads have in common: `_run` goes on until `_stop` is set.

    What `_run` raises ends the process, through threading.excepthook: it is a fault in the program.
    The process does not wait for one at its end: a call into NVML may hang with its GPU.
    """

    def __init__(self, name: str) -> None:
        self._stop = threading.Event()
        self._bell = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; it looks at once. Once only."""
        self._thread.start()

    def ring(self) -> None:
        """Have the thread look soon, as something may have changed. Wakes it; never blocks."""
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
        # Only now, and not before the next look: what rings meanwhile counts for the next wait.
        self._bell.clear()

    def _run(self) -> None:
        raise NotImplementedError


class LogOnce:
    """Tells which reasons are new, so that a lasting one is logged once."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def is_new(self, reason: str, about: str = "") -> bool:
        """Take note of a reason that concerns this; tell whether the last one was another."""
        before, self._last[about] = self._last.get(about), reason
        return reason != before

    def forget(self, about: str = "") -> bool:
        """Have the next reason logged whatever it is; tell whether there was one."""
        return self._last.pop(about, None) is not None

    def keep(self, those: Container[str]) -> None:
        """Forget the reasons that concern anything but those."""
        self._last = {about: reason for about, reason in self._last.items() if about in those}
