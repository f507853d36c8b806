"""Temporary folders of a case, for sockets and the like; those of killed runs are removed.

Each is in a folder made by this module, with a marker file that its maker keeps locked. If a
marker is not locked, its run was killed, and the next run removes the folder. A run that is killed
before it has marked its folder leaves an empty one, with a name in the form that Python gives it;
any other folder without a marker is not ours, whatever its name and age.
"""

import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dra_driver.errors import StateError

_PREFIX = "dra-bench-"
_MARKER = "scratch-of-dra-driver-bench"
_NEW = f"{_MARKER}.new"
_INSIDE = "in"
_MADE = re.compile(re.escape(_PREFIX) + "[a-z0-9_]{8}")
_MARKED_SECONDS = 60.0
"""By then, a run that is still alive has marked its folder."""


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder that is removed afterwards."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = _mark(folder)
        inside = folder / _INSIDE
        inside.mkdir()
    except OSError as error:
        raise StateError(
            f"no temporary folder can be made in {tempfile.gettempdir()}: {error.strerror}; free"
            " some space, or set TMPDIR to another place"
        ) from error
    try:
        yield inside
    finally:
        _remove(folder)
        os.close(lock)


def remove_leftovers() -> list[Path]:
    """Remove the folders of this user's runs that were killed; return them."""
    removed = []
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # not ours, another user's, or another run was faster
            if _is_unmarked(folder):
                (folder / _NEW).unlink(missing_ok=True)
                folder.rmdir()  # refused if anything else is in it
                removed.append(folder)
                continue
            lock = os.open(folder / _MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                seen = folder.lstat()
                if stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid():
                    _remove(folder)
                    removed.append(folder)
            finally:
                os.close(lock)
    return removed


def _is_unmarked(folder: Path) -> bool:
    """Whether its maker was killed before it was marked; a folder with other content is not."""
    seen = folder.lstat()
    return (
        _MADE.fullmatch(folder.name) is not None
        and stat.S_ISDIR(seen.st_mode)
        and seen.st_uid == os.geteuid()
        and time.time() - seen.st_mtime > _MARKED_SECONDS  # noqa: TID251 (as files have it)
        and {path.name for path in folder.iterdir()} <= {_NEW}
    )


def _mark(folder: Path) -> int:
    """Write the marker, which is locked when it gets its name; return the locked file."""
    unlocked = folder / _NEW
    lock = os.open(unlocked, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    unlocked.rename(folder / _MARKER)
    return lock


def _remove(folder: Path) -> None:
    """Remove a folder, its marker last: if this is interrupted, a later run completes it."""
    shutil.rmtree(folder / _INSIDE, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
