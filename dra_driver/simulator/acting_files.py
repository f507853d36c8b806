"""Files that act when something is written to them, as the kernel's do below /sys.

In: what a write to each of some names does. Out: a folder with these files, a file system of its
own (FUSE): a writer waits until the act is done, in a sleep that no signal ends, and gets its
error. A FIFO could do neither: its writer continues at once, and gets no error.

The act runs in a process other than the writer's: a thread in such a sleep cannot end with its
process, and the process that answers it must not be the one that waits.
"""

import ctypes
import enum
import errno
import os
import stat
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from dra_driver.errors import SetupError

Act = Callable[[str], None]

_NOSUID, _NODEV, _DETACH = 2, 4, 2
_FILE, _FOLDER = stat.S_IFREG | 0o200, stat.S_IFDIR | 0o755
_BUFFER = 65536
_LONGEST_WRITE = 4096
_ROOT = 1


class Operation(enum.IntEnum):
    """What the kernel asks for; <linux/fuse.h> also has the form of requests and answers."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    OPEN = 14
    READ = 15
    WRITE = 16
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42


_UNANSWERED = {Operation.FORGET, Operation.INTERRUPT, Operation.BATCH_FORGET}
_WITHOUT_BODY = {
    Operation.RELEASE,
    Operation.FSYNC,
    Operation.FLUSH,
    Operation.READDIR,
    Operation.RELEASEDIR,
    Operation.DESTROY,
}
_DIRECT_IO = 1
_REQUEST = struct.Struct("=IIQQIIIHH")
_ANSWER = struct.Struct("=IiQ")
_INIT_ANSWER = struct.Struct("=IIIIHHIIHHI7I")
_ENTRY = struct.Struct("=QQQQII")
_VALID = struct.Struct("=QII")
_ATTRIBUTES = struct.Struct("=6Q10I")
_OPENED = struct.Struct("=QIi")
_WRITE_HEAD = struct.Struct("=QQIIQII")
_WRITTEN = struct.Struct("=II")
_PROTOCOL = (7, 31)


class ActingFiles:
    """Files in a folder that act, until it is closed. An act may raise OSError for its writer.

    Raises SetupError if the folder cannot be mounted, which takes root and FUSE.
    """

    def __init__(self, folder: Path, acts: Mapping[str, Act]) -> None:
        self._folder = folder
        self._acts = list(acts.items())
        self._opened = 0
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._connection = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        except OSError as cause:
            raise SetupError(f"files that act need /dev/fuse: {cause.strerror}") from cause
        options = f"fd={self._connection},rootmode={_FOLDER:o},user_id=0,group_id=0"
        options += ",allow_other,default_permissions"  # the files' mode holds, as in /sys
        place = os.fsencode(folder)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"simulator", place, b"fuse", _NOSUID | _NODEV, options.encode()):
            why = os.strerror(ctypes.get_errno())
            os.close(self._connection)
            raise SetupError(f"files that act cannot be mounted (this takes root): {why}")
        self._server = threading.Thread(target=self._serve, name="acting files", daemon=True)
        self._server.start()

    @property
    def are_there(self) -> bool:
        """Whether they still act: nobody has unmounted them."""
        return self._server.is_alive()

    def close(self) -> None:
        """Remove the files. Writers that wait for an act get an error when this process ends."""
        unmount(self._folder)

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._connection, _BUFFER)
            except OSError as error:
                if error.errno == errno.ENOENT:  # the process that asked has gone
                    continue
                return  # ENODEV: unmounted
            _, operation, number, node, *_ = _REQUEST.unpack_from(request)
            body = request[_REQUEST.size :]
            if operation == Operation.WRITE:
                words = (number, self._acts[(node - _ROOT - 1) % len(self._acts)][1], body)
                threading.Thread(target=self._write, args=words, name="act", daemon=True).start()
            elif operation not in _UNANSWERED:
                self._answer(number, *self._plain(operation, node, body))

    def _write(self, number: int, act: Act, body: bytes) -> None:
        size = _WRITE_HEAD.unpack_from(body)[2]
        begin = _WRITE_HEAD.size
        try:
            act(body[begin : begin + size].decode(errors="replace"))
        except OSError as error:
            self._answer(number, error.errno or errno.EIO)
        else:
            self._answer(number, 0, _WRITTEN.pack(size, 0))

    def _answer(self, number: int, error: int, body: bytes = b"") -> None:
        head = _ANSWER.pack(_ANSWER.size + len(body), -error, number)
        with suppress(OSError):  # unmounted meanwhile
            os.write(self._connection, head + body)

    def _plain(self, operation: int, node: int, body: bytes) -> tuple[int, bytes]:
        """Answer a request that needs no act: an error number, 0 for none, and a body."""
        match operation:
            case Operation.INIT:
                sizes = (_BUFFER, 0, 0, 0, _LONGEST_WRITE, 1, 0, 0, 0)
                return 0, _INIT_ANSWER.pack(*_PROTOCOL, *sizes, *[0] * 7)
            case Operation.LOOKUP:
                return self._look_up(body.rstrip(b"\0").decode(errors="replace"))
            case Operation.GETATTR | Operation.SETATTR:
                return 0, _VALID.pack(0, 0, 0) + _attributes(node)
            case Operation.OPEN | Operation.OPENDIR:
                return 0, _OPENED.pack(0, _DIRECT_IO, 0)
            case _ if operation in _WITHOUT_BODY:
                return 0, b""
        return errno.EIO if operation == Operation.READ else errno.ENOSYS, b""

    def _look_up(self, name: str) -> tuple[int, bytes]:
        """Find a file: another inode each time, because a write locks its inode.

        The kernel's own files have no such lock, so writes go on side by side.
        """
        for index, (known, _) in enumerate(self._acts):
            if known == name:
                self._opened += 1
                node = _ROOT + 1 + self._opened * len(self._acts) + index
                return 0, _ENTRY.pack(node, 0, 0, 0, 0, 0) + _attributes(node)
        return errno.ENOENT, b""


def _attributes(node: int) -> bytes:
    mode, links = (_FOLDER, 2) if node == _ROOT else (_FILE, 1)
    times = [0] * 6
    return _ATTRIBUTES.pack(
        node, _LONGEST_WRITE, 0, *times, mode, links, 0, 0, 0, _LONGEST_WRITE, 0
    )


def unmount(folder: Path) -> None:
    """Remove acting files, or what is left of them if their process was ended."""
    ctypes.CDLL(None).umount2(os.fsencode(folder), _DETACH)
    with suppress(FileNotFoundError):
        folder.rmdir()
