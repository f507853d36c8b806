"""A place where faulty code can do no harm: nothing of it is left, and nothing else is touched.

Runs a function in a process group of its own, for so long and no longer. For root, who could do the
greatest harm, it also has its own PIDs, so that whatever it started ends with it and it can signal
nobody else, and its own mounts, where only the folders that it is given can be written. An ordinary
user, or root in most containers, may not make these and goes without.
"""

import ctypes
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


def run(work: Callable[[], int], *, seconds: float, writable: Sequence[Path], log: Path) -> int:
    """Return what the function does, at least 0, or LATE when it took longer than that."""
    child = os.fork()
    if child == 0:
        _end_with(lambda: _quietly(work, writable, log))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            _kill(child)
            return _exit_status(status)
        time.sleep(_POLL_S)
    _kill(child)
    os.waitpid(child, 0)
    return LATE


def _kill(session: int) -> None:
    try:
        os.killpg(session, signal.SIGKILL)
    except ProcessLookupError:
        return


def _exit_status(status: int) -> int:
    """A signal's number comes as shells have it."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _end_with(work: Callable[[], int]) -> None:
    """End this forked process with what the function returns."""
    status = _BROKEN
    try:
        status = work()
    except BaseException:  # noqa: BLE001  # nothing above this may run a second time
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _quietly(work: Callable[[], int], writable: Sequence[Path], log: Path) -> int:
    """Run the function with its output in a file."""
    os.setsid()
    _libc("prctl", _DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    with log.open("wb") as file, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    try:
        _libc("unshare", _NEW_PIDS | _NEW_MOUNTS)
    except PermissionError:
        return work()
    first = os.fork()
    if first == 0:
        _end_with(lambda: _first_process(work, writable))
    return _exit_status(os.waitpid(first, 0)[1])


def _shut(writable: Sequence[Path]) -> None:
    """Leave nothing writable but these folders and what is a mount already."""
    _libc("mount", b"none", b"/", None, _RECURSIVE | _PRIVATE, None)
    for folder in writable:
        name = os.fsencode(folder)
        _libc("mount", name, name, None, _BIND, None)
    _libc("mount", b"none", b"/", None, _REMOUNT | _BIND | _READ_ONLY, None)
    _libc("mount", b"proc", b"/proc", b"proc", 0, None)


def _first_process(work: Callable[[], int], writable: Sequence[Path]) -> int:
    """Be the parent of all orphans until the function, in a process beside this one, has ended."""
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
