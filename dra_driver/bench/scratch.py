"""Folders of a case's own, for sockets and the like, that no killed run leaves for long.

In: nothing. Out: a folder with a short path, locked by whoever made it. It goes with its case; one
that is not locked any more is that of a run that was killed, and the next run takes it away.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dra_driver.errors import StateError

_PREFIX = "dra-bench-"
_YOUNG_SECONDS = 60.0
"""A folder may be there for a moment before it is locked."""


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder that is gone afterwards.

    Raises:
        StateError: it cannot be made.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    except OSError as error:
        raise StateError(
            f"no temporary folder can be made in {tempfile.gettempdir()}: {error.strerror}; free"
            " some space, or name another place by TMPDIR"
        ) from error
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_leftovers() -> list[Path]:
    """Remove the folders of this user's runs that were killed; return which."""
    removed = []
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another user's, or another run was faster
            if _is_left(folder):
                shutil.rmtree(folder)
                removed.append(folder)
    return removed


def _is_left(folder: Path) -> bool:
    seen = folder.lstat()
    if seen.st_uid != os.geteuid() or time.time() - seen.st_mtime < _YOUNG_SECONDS:
        return False
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True
