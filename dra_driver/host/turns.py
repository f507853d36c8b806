"""Turns at computing, for threads that answer calls: who began first goes first.

Threads share one interpreter. Of eight calls that compute at once all eight end last; one after
another, the first ends in an eighth of that time and the last no later. So a call computes in its
turn, and lets others have it while it waits: for the API server, a disk, a lock, hardware. A turn
is no lock: what has waited for it long enough goes on without, so a call that hangs with a turn in
hand costs the others that long and no more.
"""

import heapq
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_PATIENCE_SECONDS = 0.1
"""Longer than some calls compute; shorter than what anybody would notice at the start of a pod."""


class Turns:
    """One turn, and a line of threads for it in the order in which their calls began."""

    def __init__(self, patience: float = _PATIENCE_SECONDS) -> None:
        self._patience = patience
        self._mutex = threading.Lock()
        self._taken = False
        self._line: list[tuple[int, threading.Lock]] = []
        self._numbers = itertools.count()
        self._thread = threading.local()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Compute in turn; the call begins here."""
        self._thread.number = next(self._numbers)
        self._thread.has = self._take(self._thread.number)
        try:
            yield
        finally:
            self._give()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let others have this thread's turn meanwhile, if it has one."""
        if not self._give():
            yield
            return
        try:
            yield
        finally:
            self._thread.has = self._take(self._thread.number)

    def _take(self, number: int) -> bool:
        with self._mutex:
            if not self._taken:
                self._taken = True
                return True
            mine = threading.Lock()
            mine.acquire()
            entry = (number, mine)
            heapq.heappush(self._line, entry)
        if mine.acquire(timeout=self._patience):
            return True
        with self._mutex:
            if entry not in self._line:
                return True  # it came this moment
            self._line.remove(entry)
            heapq.heapify(self._line)
        return False

    def _give(self) -> bool:
        if not getattr(self._thread, "has", False):
            return False
        self._thread.has = False
        with self._mutex:
            if self._line:
                heapq.heappop(self._line)[1].release()
            else:
                self._taken = False
        return True


_of_calls = Turns()
turn, waiting = _of_calls.turn, _of_calls.waiting
