"""Time that passes only while the test's thread waits for it: then at once, and by all of it.

Nobody comes to wake that thread, so a wait for seconds is over when they are. A wait that has no
end, such as for the start of a thread, is a real one, and other threads wait as ever.
"""

import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from clock import Clock

_real_wait = threading.Condition.wait
_real_poll = select.poll


@contextmanager
def virtual_time() -> Iterator[Clock]:
    """Have this thread's time pass so; `time.monotonic` is the clock that is given."""
    clock = Clock()
    thread = threading.current_thread()

    def passes(seconds: float) -> None:
        clock.now += max(0.0, seconds)

    def sleep(seconds: float) -> None:
        if threading.current_thread() is thread:
            passes(seconds)

    def wait(condition: threading.Condition, timeout: float | None = None) -> bool:
        if threading.current_thread() is not thread or timeout is None:
            return _real_wait(condition, timeout)
        passes(timeout)
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", clock)
        patch.setattr(time, "sleep", sleep)
        patch.setattr(threading, "_time", clock)
        patch.setattr(threading.Condition, "wait", wait)
        patch.setattr(select, "poll", lambda: _Poll(clock, thread))
        yield clock


class _Poll:
    """What poll(2) says at once, or nothing once the time is over."""

    def __init__(self, clock: Clock, thread: threading.Thread) -> None:
        self._real = _real_poll()
        self._clock, self._thread = clock, thread

    def register(self, *words: Any) -> None:
        self._real.register(*words)

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        if threading.current_thread() is not self._thread:
            return self._real.poll(milliseconds)
        found = self._real.poll(0)
        if not found:
            self._clock.now += milliseconds / 1000
        return found
