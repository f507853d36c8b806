"""Files that appear whole or not at all: written beside their place, then renamed into it.

In: a path, its bytes. Out: nothing, or an OSError that the caller explains. While a file is being
written, it is `.<name>.tmp` in the same folder: names that begin with a dot are never read, and a
watcher of the folder sees one rename. Writers of one path take turns; readers need no lock.
"""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from dra_driver.errors import StateError
from dra_driver.host.turns import waiting

TEMPORARY_SUFFIX = ".tmp"

Look = tuple[int, int, int, int, int, int]
Name = str | Path
"""The path of a file. What is on the way of every pod has texts: a Path takes as long to make and
to turn into a text as the system calls that it is for."""

MOVE_AWAY = "move away what is there; the driver makes the folder again"
_OF_THE_DISK = frozenset({errno.EROFS, errno.ENOSPC, errno.EDQUOT})

LARGEST = 64 * 1024**2
"""Most bytes that are read of a file; the largest that is written has some 100 KiB."""


def is_of_the_disk(error: BaseException | None) -> bool:
    """Tell whether an error is, or comes from, a disk that is full or read-only: it may pass."""
    if isinstance(error, OSError):
        return error.errno in _OF_THE_DISK
    return error is not None and is_of_the_disk(error.__cause__)


def file_error(verb: str, path: Path, error: OSError) -> StateError:
    """Return the error for a file operation that the system refused."""
    return StateError(
        f"cannot {verb} {path}: {error.strerror}; check space and permissions of the driver's "
        "directory on the node"
    )


def listing_advice(error: OSError) -> str:
    """Return what to do about a folder that cannot be listed."""
    match error.errno:
        case errno.ENOTDIR | errno.ELOOP:
            return MOVE_AWAY
        case errno.EACCES | errno.EPERM:
            return "run this as root, and check the permissions of the folder"
        case _:
            return "check the disk: see dmesg for why it cannot be read"


def entries_of(folder: Name) -> list[str]:
    """Return the names in a folder, unsorted; none if there is none, or it cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def text_of(path: Name) -> str:
    """Return a file's text, with replacements for what is not UTF-8; empty if it is unreadable."""
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def look_of(path: Name) -> Look | None:
    """Return what shows that a file was replaced, or its mode changed; None if there is none.

    Two files that had the same path within one tick of the clock, some milliseconds, can look the
    same.
    """
    try:
        seen = os.lstat(path)
    except OSError:
        return None
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_mode


def temporary_of(path: Name) -> str:
    """Return where a file is while it is being written; it stays there if the writer is killed."""
    folder, slash, name = os.fspath(path).rpartition("/")
    return f"{folder}{slash}.{name}{TEMPORARY_SUFFIX}"


def delete(path: Name) -> None:
    """Delete a file, if there is one. Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def read_whole(path: Name) -> tuple[bytes, os.stat_result] | None:
    """Return a file's bytes, and which file they are of; None if it is absent.

    Raises OSError, also for what no driver writes: a pipe, a device, a file that is far too large.
    These are neither waited for nor read.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        seen = os.fstat(file)
        if not stat.S_ISREG(seen.st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file", str(path))
        parts: list[bytes] = []
        size = 0
        while part := os.read(file, seen.st_size + 1):
            parts.append(part)
            size += len(part)
            if size > LARGEST:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return b"".join(parts), seen
    finally:
        os.close(file)


def read_if_plain(path: Name) -> tuple[bytes, os.stat_result] | None:
    """Return what `read_whole` does; None also for what it refuses."""
    with suppress(OSError):
        return read_whole(path)
    return None


def write_whole(path: Name, data: bytes, *, mode: int, durable: bool) -> None:
    """Write a file with these permission bits; a durable one survives a power cut after this call.

    After an OSError, the earlier file is still there.
    """
    temporary = temporary_of(path)
    # Neither wait for a pipe nor follow a link.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        file = os.open(temporary, flags, mode)
        try:
            os.fchmod(file, mode)  # whatever the umask
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
            if durable:
                with waiting():
                    os.fsync(file)
        finally:
            os.close(file)
        os.replace(temporary, path)
        if durable:
            sync_folder(os.path.dirname(path) or ".")
    except OSError:
        with suppress(OSError):
            delete(temporary)  # half a file may fill a disk
        raise


def sync_folder(folder: Name) -> None:
    """Make what was created or renamed in a folder survive a power cut. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with waiting():
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
