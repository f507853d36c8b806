"""Tells those beside the calls late which claims were prepared and unprepared.

In: each claim when its call has succeeded, and what was given back. Out: the same, for many claims
at once, when the calls leave time for it. A thread that is woken takes the interpreter from the
call that woke it. So of many calls in a row the first alone wakes this thread, for a moment: the
others leave notes. What a claim was in between is not told, and nothing is lost at the end.
"""

import threading
from collections.abc import Callable, Collection

from msgspec import Struct, field

from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.host.listeners import Listeners
from dra_driver.host.worker import Worker

IDLE_SECONDS = 3600.0
"""For the thread to wait for a first note, which wakes it."""


class _Notes(Struct):
    prepared: dict[ClaimUid, ClaimRef] = field(default_factory=dict)
    unprepared: dict[ClaimUid, ClaimRef] = field(default_factory=dict)
    has_released: bool = False


class ClaimNews(Worker):
    """A thread that passes on what calls have noted. Fill the listeners before it starts.

    Listeners:
        changed: claims that are prepared now, and those that were unprepared, also if they are
            prepared again.
        released: a claim has given something back.
    """

    def __init__(
        self, busy: Callable[[], float], *, look_seconds: float = 0.5, longest: float = 3.0
    ) -> None:
        """Take what says for how many seconds calls should be left alone.

        Notes are looked for every `look_seconds`, and told beside calls that leave no time for so
        many seconds.
        """
        super().__init__("claim-news")
        self.changed: Listeners[[Collection[ClaimRef], Collection[ClaimRef]]] = Listeners()
        self.released: Listeners[[]] = Listeners()
        self._busy = busy
        self._look_seconds = look_seconds
        self._longest = longest
        self._lock = threading.Lock()
        self._notes = _Notes()
        self._waited = 0.0

    def prepared(self, ref: ClaimRef) -> None:
        """Note that a claim was prepared, for the first time or again."""
        with self._lock:
            self._notes.prepared[ref.uid] = ref
        self._wake()

    def unprepared(self, ref: ClaimRef) -> None:
        """Note that a claim was unprepared."""
        with self._lock:
            self._notes.prepared.pop(ref.uid, None)
            self._notes.unprepared[ref.uid] = ref
        self._wake()

    def given_back(self) -> None:
        """Note that a claim has given something back."""
        with self._lock:
            self._notes.has_released = True
        self._wake()

    def look(self) -> None:
        """Pass on what is noted, if calls leave time for it or have not for long."""
        self._waited += self._look_seconds
        if self._waited >= self._longest or not self._busy():
            self._waited = 0.0
            self._tell()

    def _wake(self) -> None:
        if not self._bell.is_set():
            self.ring()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wait(IDLE_SECONDS)
            while self._has_notes() and not self._stop.wait(self._look_seconds):
                self.look()
        self._tell()

    def _has_notes(self) -> bool:
        notes = self._notes
        return bool(notes.prepared or notes.unprepared or notes.has_released)

    def _tell(self) -> None:
        with self._lock:
            notes, self._notes = self._notes, _Notes()
        if notes.prepared or notes.unprepared:
            self.changed(notes.prepared.values(), notes.unprepared.values())
        if notes.has_released:
            self.released()
