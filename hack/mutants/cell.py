"""A place where faulty code can do no harm: nothing of it is left, and nothing else is touched.

Runs a function in a process group of its own, with a time limit. For root, who could do the most
harm, it also has its own PIDs, so that everything it started ends with it and it can signal nobody
else, and its own mounts, where only given folders are writable. Ordinary users, and root in most
containers, cannot have these.
"""

import ctypes
import math
import mmap
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

_NEW_MOUNTS, _NEW_PIDS = 0x20000, 0x20000000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 32, 4096, 16384, 1 << 18
_DIE_WITH_PARENT = 1  # prctl(2)
_MEMORY = 16 << 30
_POLL_S = 0.005
LATE = -1
_BROKEN = 125
_OUT_OF_CPU = 128 + signal.SIGXCPU


class Limit:
    """How long a function may take; it may extend the limit itself as it proceeds.

    The CPU time of each process counts, because the machine may be busy. The limit of wall-clock
    time is for code that waits forever.
    """

    def __init__(self, *, cpu: float, wall: float) -> None:
        self._cpu = cpu
        self._end = memoryview(mmap.mmap(-1, 8)).cast("d")  # shared with forked processes
        self._end[0] = time.monotonic() + wall

    def begin(self) -> None:
        """Apply the limit of CPU time to this process and those that it starts."""
        most = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (max(1, math.ceil(self._cpu)), most))

    def put_off(self, *, cpu: float, wall: float) -> None:
        """Start this process's limit again from now on."""
        self._cpu = time.process_time() + cpu
        self._end[0] = time.monotonic() + wall
        self.begin()

    def is_over(self) -> bool:
        """Tell whether the wall-clock time is over."""
        return time.monotonic() >= self._end[0]


def run(work: Callable[[], int], *, limit: Limit, writable: Sequence[Path], log: Path) -> int:
    """Return the function's result, at least 0, or LATE if it took too long."""
    child = os.fork()
    if child == 0:
        _end_with(lambda: _apart(lambda: _shut_in(work, limit, writable), log))
    while not limit.is_over():
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            _kill(child)
            code = _exit_status(status)
            return LATE if code == _OUT_OF_CPU else code
        time.sleep(_POLL_S)
    end(child)
    return LATE


def fork(work: Callable[[], int], *, log: Path) -> int:
    """Run a function without a fault in another process, until it is ended; return its PID."""
    child = os.fork()
    if child == 0:
        _end_with(lambda: _apart(work, log))
    return child


def end(child: int) -> None:
    """End a forked process and those that it started."""
    _kill(child)
    os.waitpid(child, 0)


def _kill(session: int) -> None:
    try:
        os.killpg(session, signal.SIGKILL)
    except ProcessLookupError:
        return


def _exit_status(status: int) -> int:
    """Return an exit status; a signal's number as in shells."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _end_with(work: Callable[[], int]) -> None:
    """End this forked process with the function's result as its status."""
    status = _BROKEN
    try:
        status = work()
    except BaseException:  # noqa: BLE001  # nothing above this may run a second time
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _apart(work: Callable[[], int], log: Path) -> int:
    """Run the function in a session of its own that ends with its parent, its output in a file."""
    os.setsid()
    _libc("prctl", _DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    with log.open("wb") as file, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    return work()


def _shut_in(work: Callable[[], int], limit: Limit, writable: Sequence[Path]) -> int:
    """Run the function where it can do no harm."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    limit.begin()
    try:
        _libc("unshare", _NEW_PIDS | _NEW_MOUNTS)
    except PermissionError:
        return work()
    first = os.fork()
    if first == 0:
        _end_with(lambda: _first_process(work, writable))
    return _exit_status(os.waitpid(first, 0)[1])


def _shut(writable: Sequence[Path]) -> None:
    """Leave nothing writable except these folders and existing mounts."""
    _libc("mount", b"none", b"/", None, _RECURSIVE | _PRIVATE, None)
    for folder in writable:
        name = os.fsencode(folder)
        _libc("mount", name, name, None, _BIND, None)
    _libc("mount", b"none", b"/", None, _REMOUNT | _BIND | _READ_ONLY, None)
    _libc("mount", b"proc", b"/proc", b"proc", 0, None)


def _first_process(work: Callable[[], int], writable: Sequence[Path]) -> int:
    """Be the parent of all orphans until the function, in another process, has ended."""
    _libc("prctl", _DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    _shut(writable)
    child = os.fork()
    if child == 0:
        _end_with(work)
    while True:
        pid, status = os.wait()
        if pid == child:
            return _exit_status(status)


def _libc(name: str, *words: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*words) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
