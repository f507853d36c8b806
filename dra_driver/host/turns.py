"""Turns at computing, for threads that answer calls: the call that began first goes first.

Threads share one interpreter. Eight calls that compute at the same time all end late; one after
another, the first ends in an eighth of that time, and the last one no later. So a call computes
only while it has the turn, and gives it up while it waits: for the API server, a disk, a lock,
hardware. A turn is no lock: one that lasts too long is taken away, so a call that hangs delays the
others only once, and continues without a turn. The place where it was is logged, because it may be
a wait that does not give up the turn.
"""

import heapq
import itertools
import sys
import threading
from pathlib import Path

import structlog
from msgspec import Struct, field

log = structlog.get_logger()

_PROGRAM = Path(__file__).parents[1]
_LONGEST_SECONDS = 0.1
"""How long a turn may last. Most take some milliseconds; a pod's start hardly shows this long."""


class _Place(Struct, order=True):
    """A call's place in the line, by when it began; `come` is locked until its turn comes."""

    number: int
    come: threading.Lock = field(default_factory=threading.Lock)
    thread: int = field(default_factory=threading.get_ident)


class Turns:
    """One turn, and the threads that wait for it, in the order in which their calls began.

    A block of code with it is a call, which computes in turn.
    """

    def __init__(self, longest: float = _LONGEST_SECONDS) -> None:
        self._longest = longest
        self._mutex = threading.Lock()
        self._has: _Place | None = None
        self._line: list[_Place] = []
        self._numbers = itertools.count()
        self._thread = threading.local()

    def waiting(self) -> "_Waiting":
        """Give up the turn meanwhile, if this thread answers a call."""
        return _Waiting(self)

    @property
    def place(self) -> _Place | None:
        """The place of this thread's call; None if it answers none."""
        return getattr(self._thread, "place", None)

    def __enter__(self) -> None:
        """Begin a call on this thread, and wait for its turn."""
        place = self._thread.place = _Place(next(self._numbers))
        self.take(place)

    def __exit__(self, *_: object) -> None:
        """End this thread's call."""
        place, self._thread.place = self._thread.place, None
        self.give(place)

    def take(self, place: _Place) -> None:
        """Wait for the turn of a call."""
        with self._mutex:
            if self._has is None:
                self._has = place
                return
            place.come.acquire(blocking=False)
            heapq.heappush(self._line, place)
            before = self._has
        while not place.come.acquire(timeout=self._longest):
            with self._mutex:
                is_taken = self._has is before
                if is_taken:
                    self._pass_on()
                former, before = before, self._has
            if is_taken:  # without the mutex: a log that nobody reads would block every call
                log.debug("turn at computing taken from a call", line=_line_of(former.thread))

    def give(self, place: _Place) -> None:
        """Pass the turn of a call on, if it still has it."""
        with self._mutex:
            if self._has is place:
                self._pass_on()

    def _pass_on(self) -> None:
        self._has = heapq.heappop(self._line) if self._line else None
        if self._has is not None:
            self._has.come.release()


class _Waiting:
    """Waiting while others compute. A class, because generators cost a prepare a tenth."""

    __slots__ = ("_place", "_turns")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._place = turns.place

    def __enter__(self) -> None:
        if self._place is not None:
            self._turns.give(self._place)

    def __exit__(self, *_: object) -> None:
        if self._place is not None:
            self._turns.take(self._place)


def _line_of(thread: int) -> str:
    """Return the line of this program that a thread is at: `host/files.py:132 in sync_folder`."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 (Python's own way to ask)
    while frame is not None and not frame.f_code.co_filename.startswith(f"{_PROGRAM}/"):
        frame = frame.f_back
    if frame is None:
        return "unknown"
    code = frame.f_code
    return f"{Path(code.co_filename).relative_to(_PROGRAM)}:{frame.f_lineno} in {code.co_name}"


IN_TURN = Turns()
"""The turns of all calls of the kubelet."""

waiting = IN_TURN.waiting


def acquired(lock: threading.Lock, seconds: float) -> bool:
    """Acquire a lock at once, or within so many seconds, during which others have the turn."""
    if lock.acquire(blocking=False):
        return True
    with waiting():
        return lock.acquire(timeout=seconds)
