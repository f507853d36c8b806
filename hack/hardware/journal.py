"""The undo journal: on disk before anything is changed, removed when everything is as it was.

It has the card's settings, which of them may have been changed since, and how the run's processes
and folder are recognised. Any process can undo a killed run with it.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from dra_driver.errors import ConflictError, StateError
from dra_driver.host.files import read_whole, write_whole
from hardware.card import Settings
from hardware.steps import Change, Made

_VERSION = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is known of a run that has not been undone.

    Attributes:
        run: its name in the environment of each of its processes, and in the names of its
            containers' control groups (processes.py).
        root: the driver root, and `gpu` the UUID of the card there.
        folder: has all of its files.
        group: the control group that it makes for memory limits.
        before: how the card was set.
        touched: what may have been changed since.
        made: MIG devices that the run has made or was about to make, and has not destroyed.
    """

    run: str
    root: Path
    gpu: str
    folder: Path
    group: Path | None
    before: Settings
    touched: tuple[Change, ...] = ()
    made: tuple[Made, ...] = ()


_ENTRY = TypeAdapter(Entry)


class Journal:
    """The journal below a folder of the user's, for one run at a time."""

    def __init__(self, folder: Path) -> None:
        """Take the folder, which is made when needed."""
        self._folder = folder
        self.file = folder / "undo.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs out. Raises ConflictError while there is another."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateError(
                f"the undo journal cannot be kept in {self._folder}: {error.strerror}; name another"
                " folder by --state"
            ) from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConflictError(
                    f"another run has {self._folder} locked; wait for its end"
                ) from error
            yield
        finally:
            os.close(lock)

    def read(self) -> Entry | None:
        """Return what has to be undone; None for nothing. Raises StateError if damaged."""
        contents = read_whole(self.file)
        if contents is None:
            return None
        try:
            known = json.loads(contents[0])
            if known.pop("version") != _VERSION:
                raise StateError(f"{self.file} is of another version; restore with that one")
            return _ENTRY.validate_python(known)
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(f"{self.file} is damaged ({error}); see what it says") from error

    def write(self, entry: Entry) -> None:
        """Write it, so that it survives a power failure."""
        known = {"version": _VERSION, **_ENTRY.dump_python(entry, mode="json")}
        text = json.dumps(known, indent=1) + "\n"
        write_whole(self.file, text.encode(), mode=0o600, durable=True)

    def touch(self, entry: Entry, changes: frozenset[Change]) -> Entry:
        """Note what will be changed; return the entry with it."""
        more = tuple(sorted(changes - set(entry.touched)))
        if not more:
            return entry
        entry = replace(entry, touched=(*entry.touched, *more))
        self.write(entry)
        return entry

    def make(self, entry: Entry, made: Made) -> Entry:
        """Note a MIG device that will be or was made; return the entry with it."""
        entry = replace(entry, made=(*_beside(entry, made), made))
        self.write(entry)
        return entry

    def unmake(self, entry: Entry, *made: Made) -> Entry:
        """Note that MIG devices are destroyed; return the entry without them.

        What is in their places from now on belongs to others.
        """
        if not made:
            return entry
        for each in made:
            entry = replace(entry, made=_beside(entry, each))
        self.write(entry)
        return entry

    def forget(self) -> None:
        """Remove the journal: everything is as it was."""
        self.file.unlink(missing_ok=True)


def _beside(entry: Entry, made: Made) -> tuple[Made, ...]:
    return tuple(each for each in entry.made if each.place != made.place)
