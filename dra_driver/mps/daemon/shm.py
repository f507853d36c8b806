"""Prunes the /dev/shm of a shared domain: removes what ended claims have left there.

A file, link, socket, FIFO or folder may have been made by any claim that was a member when it was
first seen, or was seen to have changed. It is removed when all of these have left: a folder once it
is empty, and a plain file once no process on the node has it open or mapped. A lease tells that
(fcntl(2), F_SETLEASE): the kernel grants one only for a file that nobody else has open, in any
container. So clocks are not trusted, and no process's memory is read. Each look goes through
everything, which the tmpfs limits (`FILES`), so nothing can be hidden behind other names or in deep
folders. Tenants choose the names, so no link is followed, and only plain files and folders are
opened. No name leads elsewhere, because each is looked up in a folder's descriptor. Two folders of
a tree are open at a time. On the way up, `..` has to be the folder above (as in rm(1)). If it is
not, a tenant has moved the folder, and the rest of that tree waits for the next look.
"""

import fcntl
import os
import signal
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

from msgspec import Struct

FILES = 65_536
"""Files, links and folders that the tmpfs accepts: about 1 KiB of the kernel's memory each."""

MOST_NAMES = 2 * FILES
"""How many names one look goes through: tenants may make more as fast as they are listed."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, open(2) would wait for a tenant that has a lease on the file.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_UNOPENED = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class _Seen(Struct, frozen=True, kw_only=True):
    """An inode as last seen; `makers` are the present members that may have made it."""

    changed_ns: int
    makers: frozenset[str]


class ShmPruner:
    """Prunes one domain's /dev/shm. For one thread."""

    def __init__(self) -> None:
        self._seen: Mapping[int, _Seen] = {}

    def look(self, folder: Path, members: Callable[[], frozenset[str]]) -> int:
        """Remove what ended claims have left; return how many files and folders.

        `members` returns the claims that have joined. It is called before, to find out who has
        left, and again after everything was seen, because a claim that made something had joined
        before, or has left since. Raises StateError if the members cannot be read.
        """
        try:
            top = os.open(folder, _FOLDER)
        except OSError:
            return 0
        try:
            look = _Look(top, self._seen, members())
            look.go()
        finally:
            os.close(top)
        self._seen = look.seen_by(members())
        return look.pruned


class _Folder(Struct, kw_only=True):
    """A folder on the way down: its name in its parent, its status, and the names left to see."""

    name: str
    status: os.stat_result
    makers: frozenset[str] | None
    names: Iterator[str]
    was_pruned: bool = False


class _Look:
    """One look through a whole /dev/shm."""

    def __init__(self, top: int, before: Mapping[int, _Seen], members: frozenset[str]) -> None:
        self.pruned = 0
        self._top = top
        self._top_status = os.fstat(top)
        self._before = before
        self._members = members
        self._seen: dict[int, _Seen] = {}
        self._new: dict[int, int] = {}
        self._names_left = MOST_NAMES
        self._is_whole = True

    def go(self) -> None:
        """Note what is there, and remove what ended claims have left."""
        for name in self._names(self._top):
            status = _found(self._top, name)
            if status is not None and stat.S_ISDIR(status.st_mode):
                try:
                    self._tree(name, status)
                except OSError:
                    self._is_whole = False
            elif status is not None:
                self._visit(self._top, name, status)

    def seen_by(self, members: frozenset[str]) -> dict[int, _Seen]:
        """Return what is there now; new entries may have been made by any of these members."""
        seen = self._seen | {
            inode: _Seen(changed_ns=changed_ns, makers=members)
            for inode, changed_ns in self._new.items()
        }
        if not self._is_whole and len(seen) < MOST_NAMES:
            # Entries that this look did not reach must not count as new in the next one.
            seen = {**self._before, **seen}
        return seen

    def _names(self, folder: int) -> Iterator[str]:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, self._names_left)]
        self._names_left -= len(names)
        self._is_whole &= self._names_left > 0
        return iter(names)

    def _tree(self, name: str, status: os.stat_result) -> None:
        """Go through a folder of the top level, and all below it, even if it is moved meanwhile.

        Raises OSError if a folder cannot be entered, or is not where it was.
        """
        way: list[_Folder] = []
        here = os.dup(self._top)
        try:
            here = self._entered(here, name, status, way)
            while way:
                folder = way[-1]
                child = next(folder.names, None)
                if child is None:
                    way.pop()
                    above = way[-1].status if way else self._top_status
                    here = _moved(here, "..", above)
                    was_removed = self._leave(here, folder)
                    if way:
                        way[-1].was_pruned |= was_removed
                    continue
                there = _found(here, child)
                if there is not None and stat.S_ISDIR(there.st_mode):
                    here = self._entered(here, child, there, way)
                elif there is not None:
                    folder.was_pruned |= self._visit(here, child, there)
        finally:
            os.close(here)

    def _entered(self, here: int, name: str, status: os.stat_result, way: list[_Folder]) -> int:
        if status.st_dev != self._top_status.st_dev:
            return here
        inside = _moved(here, name, status)
        makers = self._makers(status)
        way.append(_Folder(name=name, status=status, makers=makers, names=self._names(inside)))
        return inside

    def _leave(self, above: int, folder: _Folder) -> bool:
        """Remove a folder whose makers are gone, if it is empty; return whether it is gone."""
        now = _found(above, folder.name)
        if now is None or not os.path.samestat(now, folder.status):
            return False
        if folder.makers is not None and not folder.makers:
            with suppress(OSError):
                os.rmdir(folder.name, dir_fd=above)
                self.pruned += 1
                return True
        # If this look removed something in the folder, that has changed the folder, too.
        self._keep(now if folder.was_pruned else folder.status, folder.makers)
        return False

    def _visit(self, inside: int, name: str, status: os.stat_result) -> bool:
        """Remove an entry (no folder) if makers and users are gone; return whether it is gone."""
        makers = self._makers(status)
        if makers is not None and not makers:
            left = _remove_unused(inside, name, status)
            if left is not None:
                self.pruned += 1
                if left.st_nlink:  # it has other names, and this removal has changed its status
                    self._keep(left, makers)
                return True
        self._keep(status, makers)
        return False

    def _makers(self, status: os.stat_result) -> frozenset[str] | None:
        """Return which possible makers of an entry are left; None if it is new."""
        before = self._seen.get(status.st_ino) or self._before.get(status.st_ino)
        if before is None or status.st_ino in self._new or before.changed_ns != status.st_ctime_ns:
            return None
        return before.makers & self._members

    def _keep(self, status: os.stat_result, makers: frozenset[str] | None) -> None:
        if makers is None:
            self._new[status.st_ino] = status.st_ctime_ns
        else:
            self._seen[status.st_ino] = _Seen(changed_ns=status.st_ctime_ns, makers=makers)


def _found(inside: int, name: str) -> os.stat_result | None:
    with suppress(OSError):
        return os.stat(name, dir_fd=inside, follow_symlinks=False)
    return None


def _moved(here: int, name: str, wanted: os.stat_result) -> int:
    """Return a folder opened in the place of `here`, which is closed.

    Raises OSError if it is not the expected one; `here` stays open then.
    """
    there = os.open(name, _FOLDER, dir_fd=here)
    if not os.path.samestat(os.fstat(there), wanted):
        os.close(there)
        raise NotADirectoryError(name)
    os.close(here)
    return there


def _remove_unused(inside: int, name: str, status: os.stat_result) -> os.stat_result | None:
    """Remove a name of a file that nobody has open or mapped; return its status, else None."""
    is_file = stat.S_ISREG(status.st_mode)
    try:
        descriptor = os.open(name, _FILE if is_file else _UNOPENED, dir_fd=inside)
    except OSError:
        return None
    try:
        if not _is_same(os.fstat(descriptor), status):
            return None
        if is_file:
            # If somebody opens it now, this process gets a signal; the default one would end it.
            fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
            # Refused while anybody else has it open. Later openers wait until it is removed.
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        there = _found(inside, name)
        if there is None or not _is_same(there, status):
            return None
        os.unlink(name, dir_fd=inside)
        return os.fstat(descriptor)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _is_same(status: os.stat_result, other: os.stat_result) -> bool:
    return os.path.samestat(status, other) and status.st_ctime_ns == other.st_ctime_ns
