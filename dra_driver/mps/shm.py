"""Prunes the /dev/shm of a shared domain: files that claims have left there that are gone.

In: the folder, and the claims that have joined the domain, at each look. Out: fewer files. A file
may be the work of whoever was a member when it was first seen, or was seen to have changed. It goes
when all of these have left and no process on the node has it open or mapped, which a lease on it
tells (fcntl(2), F_SETLEASE): the kernel gives one only for a file that nobody else has open, in
whichever container. So no clock is believed, and no process's memory looked into.

Only plain files at the top are removed. Their names are the tenants' work: none is followed, none
is opened that is no plain file, and none leads elsewhere, since each is looked up in the folder's
descriptor. Folders, links, FIFOs and sockets stay until the domain ends: they take next to nothing.
"""

import fcntl
import os
import signal
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

MOST_FILES = 4096
"""How many names are looked at: a tenant can make as many as it likes."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK it would wait for a tenant that has a lease on the file.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A file as it was: `makers` are the members that may have made it, and are still there."""

    changed_ns: int
    makers: frozenset[str]


class ShmPruner:
    """Prunes one domain's /dev/shm. For one thread."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def look(self, folder: Path, members: Callable[[], frozenset[str]]) -> int:
        """Remove the files of claims that are gone; return how many.

        Args:
            folder: the tmpfs.
            members: returns the claims that have joined. Asked once, after the files were seen:
                whoever has made one had joined before, or has left since.

        Raises:
            StateError: the members cannot be read.
        """
        try:
            inside = os.open(folder, _FOLDER)
        except OSError:
            return 0
        try:
            return self._prune(inside, members)
        finally:
            os.close(inside)

    def _prune(self, inside: int, read_members: Callable[[], frozenset[str]]) -> int:
        with os.scandir(inside) as entries:
            names = [entry.name for entry in islice(entries, MOST_FILES)]
        files = {name: found for name in names if (found := _plain_file(inside, name))}
        members = read_members()
        seen: dict[int, _Seen] = {}
        pruned = 0
        for name, found in files.items():
            before = self._seen.get(found.st_ino)
            is_same = before is not None and before.changed_ns == found.st_ctime_ns
            makers = before.makers & members if before is not None and is_same else members
            if is_same and not makers and _remove_unused(inside, name, found):
                pruned += 1
            else:
                seen[found.st_ino] = _Seen(changed_ns=found.st_ctime_ns, makers=makers)
        self._seen = seen
        return pruned


def _plain_file(inside: int, name: str) -> os.stat_result | None:
    with suppress(OSError):
        found = os.stat(name, dir_fd=inside, follow_symlinks=False)
        if stat.S_ISREG(found.st_mode):
            return found
    return None


def _remove_unused(inside: int, name: str, found: os.stat_result) -> bool:
    """Remove a file that nobody has open or mapped; return whether it is gone."""
    try:
        descriptor = os.open(name, _FILE, dir_fd=inside)
    except OSError:
        return False
    try:
        now = os.fstat(descriptor)
        if not os.path.samestat(now, found) or now.st_ctime_ns != found.st_ctime_ns:
            return False
        # Who opens the file now has this process told by a signal, of which the usual one ends it.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        # Refused while anybody else has it open; who opens it from now on waits until it is gone.
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        there = _plain_file(inside, name)
        if there is None or not os.path.samestat(there, now):
            return False
        os.unlink(name, dir_fd=inside)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
