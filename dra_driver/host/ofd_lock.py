"""Open-file-description locks (fcntl(2), F_OFD_SETLK): on a range of bytes, and with a name.

The kernel releases such a lock when its process ends, however that happens, and others can query it
(F_OFD_GETLK) without taking it. By `NamedLock` the driver sees which supervisor runs, and the
supervisor sees an evicted driver. The file names the process that holds the lock, so that the
statuses of different supervisors can be told apart.
"""

import errno
import fcntl
import os
import struct
from pathlib import Path

from dra_driver.errors import StateError
from dra_driver.host.files import file_error, text_of

_ROOM = 256


def lock(file: int, start: int = 0, length: int = 0) -> bool:
    """Lock a range of bytes, to the end for length 0; False if another process has some of it.

    Raises OSError if the file system has no such locks.
    """
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, start, length))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def unlock(file: int, start: int = 0, length: int = 0) -> None:
    """Unlock a range of bytes; raises as `lock`."""
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, start, length))


class NamedLock:
    """A file that one process at a time locks, such as the supervisor of an MPS directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def take(self, name: str) -> bool:
        """Take the lock and write the name into it; False while another process has it.

        Raises StateError if the file cannot be used.
        """
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if lock(file):
                    os.ftruncate(file, 0)
                    os.pwrite(file, name.encode(), 0)
                    self._file = file
            finally:
                if self._file != file:
                    os.close(file)
        except OSError as error:
            raise file_error("lock", self._path, error) from error
        return self._file == file

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def holder_of(path: Path) -> str | None:
    """Return the name of the process that holds a lock, None if none does. Raises StateError."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise file_error("read", path, error) from error
    try:
        answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _flock(fcntl.F_RDLCK, 0, 0))
        kind = struct.unpack_from("h", answer)[0]
        return None if kind == fcntl.F_UNLCK else os.pread(file, _ROOM, 0).decode() or None
    except (OSError, UnicodeDecodeError) as error:
        raise StateError(f"cannot query the lock on {path}: {error}") from error
    finally:
        os.close(file)


def last_holder_of(path: Path) -> str | None:
    """Return the name of the process that holds or last held a lock; None if it is not known."""
    return text_of(path)[:_ROOM] or None


def _flock(kind: int, start: int, length: int) -> bytes:
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)
