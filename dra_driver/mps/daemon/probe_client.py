"""The program of a probe's process: briefly a CUDA client, then it ends.

In: libcuda's path, the ordinal of a device, user, group, and seconds. Out: on stdout `asking` just
before the first call, and then a line with the last call and its result: `cuCtxDestroy_v2 0` if all
went well. It launches no work, so it can be killed at any time without harm to others.

It runs by itself (`python -I -S`) and imports nothing of this package. What it maps from /dev/shm
is its tenants' work, so it gives up all rights before the first call, because a client's process of
that user would have none either.
"""

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence

ASKING = "asking"
LAST_CALL = "cuCtxDestroy_v2"

_PR_SET_NO_NEW_PRIVS = 38  # linux/prctl.h
_CAPABILITY_VERSION_3 = 0x20080522  # linux/capability.h
_CU_CTX_SCHED_BLOCKING_SYNC = 4
_SUCCESS = 0
_NOT_THERE = -1


def main(arguments: Sequence[str]) -> int:
    """Be a CUDA client briefly; return the exit status, which has no meaning."""
    library, *numbers = arguments
    ordinal, user, group, seconds = map(int, numbers)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)  # in case the process that should kill this one was killed
    cuda = ctypes.CDLL(library)
    _give_up_rights(user, group)
    _say(ASKING)
    for name, code in _calls(cuda, ordinal):
        if code != _SUCCESS or name == LAST_CALL:
            _say(f"{name} {code}")
            break
    return 0


def _calls(cuda: ctypes.CDLL, ordinal: int) -> Iterator[tuple[str, int]]:
    device, context = ctypes.c_int(), ctypes.c_void_p()
    yield "cuInit", _call(cuda, "cuInit", ctypes.c_uint(0))
    yield "cuDeviceGet", _call(cuda, "cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
    flags = ctypes.c_uint(_CU_CTX_SCHED_BLOCKING_SYNC)
    yield "cuCtxCreate_v2", _call(cuda, "cuCtxCreate_v2", ctypes.byref(context), flags, device)
    yield LAST_CALL, _call(cuda, LAST_CALL, context)


def _call(cuda: ctypes.CDLL, name: str, *arguments: object) -> int:
    function: Callable[..., int] | None = getattr(cuda, name, None)
    return _NOT_THERE if function is None else function(*arguments)


def _give_up_rights(user: int, group: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _check(libc.capset(header, (ctypes.c_uint32 * 6)()))


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), "the kernel lets no rights be given up")


def _say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


if __name__ == "__main__":
    # os._exit, because libraries could wait for something at an orderly exit.
    os._exit(main(sys.argv[1:]))
