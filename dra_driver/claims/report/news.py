"""Tells listeners which claims were prepared and unprepared, when calls leave time for it.

In: a note of each claim whose call has succeeded, and of what was given back. Out: the notes of
many claims at once. A thread that wakes up takes the interpreter from the call that woke it. So
only the first of many calls in a row wakes this thread, for a moment; the others leave notes. Only
the latest state of a claim is passed on, and no note is lost at the driver's end.
"""

import threading
from collections.abc import Callable, Collection

from msgspec import Struct, field

from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.host.worker import Listeners, Worker

IDLE_SECONDS = 3600.0
"""The longest wait of the thread for a first note, which wakes it."""


class _Notes(Struct):
    prepared: dict[ClaimUid, ClaimRef] = field(default_factory=dict)
    unprepared: dict[ClaimUid, ClaimRef] = field(default_factory=dict)
    has_released: bool = False


class ClaimNews(Worker):
    """A thread that passes on the notes of calls. Fill the listeners before it starts.

    Listeners:
        changed: claims that are prepared now, and those that were unprepared, even if they are
            prepared again.
        released: a claim has given something back.
    """

    def __init__(
        self, busy: Callable[[], float], *, look_seconds: float = 0.5, longest: float = 3.0
    ) -> None:
        """Take `busy`, which returns for how many seconds calls should be left alone.

        The thread looks for notes every `look_seconds`, and passes them on beside calls if these
        leave it no time for `longest` seconds.
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
        """Pass on the notes, if calls leave time for it or have left none for long."""
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
