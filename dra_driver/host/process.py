"""This process as a whole: what ends it, its memory, its boot and PIDs, and its threads' stacks.

In: SIGTERM and SIGINT, and exceptions that no thread has caught. Out: the reason to end, for the
main thread, which waits for it and then stops everything in order. A process with a part missing
must not look alive: it ends with status 1 and is restarted whole.
"""

import gc
import os
import queue
import select
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from types import FrameType

import structlog
from msgspec import Struct

from dra_driver.errors import SetupError

log = structlog.get_logger()


class ShutdownReason(Struct, frozen=True, kw_only=True):
    """Why the process ends: in words, and as its exit status."""

    text: str
    exit_status: int


THREAD_DIED = ShutdownReason(text="a thread died", exit_status=1)


class Shutdown:
    """Waits for the reason to end. Call its watch_ methods before any thread is started."""

    def __init__(self) -> None:
        # A SimpleQueue may be put to from a signal handler; an Event's lock may not be taken there.
        self._reasons: queue.SimpleQueue[ShutdownReason] = queue.SimpleQueue()
        # Open for as long as the process lives: signals are written there at any time.
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)

    def watch_signals(self) -> None:
        """End at SIGTERM and SIGINT. For the main thread only, as Python wants it."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        # Python runs handlers between two of its instructions. A signal that comes just when the
        # main thread begins to sleep would be handled only after that; this wakes it.
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def watch_threads(self) -> None:
        """End when a thread ends by an exception."""
        threading.excepthook = self._on_dead_thread

    def wait(self, timeout: float | None = None) -> ShutdownReason:
        """Return the first reason to end, as soon as there is one.

        Raises queue.Empty if there is none after `timeout` seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            with suppress(queue.Empty):
                return self._reasons.get_nowait()
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise queue.Empty
            if self._poll.poll(None if left is None else left * 1000):
                os.read(self._woken, 4096)

    def comes_within(self, seconds: float) -> bool:
        """Wait for that long, or until there is a reason to end; return whether there is one."""
        try:
            self.wait(seconds)
        except queue.Empty:
            return False
        return True

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._reasons.put(ShutdownReason(text=signal.Signals(number).name, exit_status=0))

    def _on_dead_thread(self, args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread is not None else "unknown"
        log.error("thread died", thread=name, exc_info=args.exc_value or args.exc_type())
        self._reasons.put(THREAD_DIED)
        with suppress(BlockingIOError):  # a full pipe wakes it as well
            os.write(self._wake, b"\0")


def spare_lasting_objects() -> None:
    """Exclude start-up's objects from garbage collections, which stop all threads for 15 ms."""
    gc.collect()
    gc.freeze()


def dump_stacks_at_sigusr2(path: Path) -> None:
    """Write the stacks of all threads to a file at each SIGUSR2, to find out why it hangs.

    If the file cannot be written, they go to standard error. For the main thread only, which writes
    them between two of its instructions. Not by faulthandler, which reads the stacks of threads
    while they run, and can crash the process.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        file = os.open(path, flags, 0o600)  # for as long as the process lives
    except OSError:
        file = 2

    def dump(_number: int, _frame: object) -> None:
        view = memoryview(_stacks().encode(errors="replace"))
        with suppress(OSError):
            while view:
                view = view[os.write(file, view) :]

    signal.signal(signal.SIGUSR2, dump)


def _stacks() -> str:
    """Return the stacks of all threads, the innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"Thread {ident:#018x} ({names.get(ident, 'not of Python')}):\n"
        + "".join(traceback.format_stack(frame))
        for ident, frame in sys._current_frames().items()  # noqa: SLF001 (documented for this)
    )


def read_boot_id(proc_root: Path) -> str:
    """Return the id of this boot, new after each reboot (random(4)). Raises SetupError."""
    path = proc_root / "sys/kernel/random/boot_id"
    try:
        return path.read_text(errors="replace").strip()
    except OSError as error:
        raise SetupError(
            f"{path} cannot be read: {error.strerror}; check that procfs is mounted at --proc-root"
        ) from error


_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO (include/linux/proc_ns.h)."""


def first_procfs(*folders: Path) -> Path:
    """Return the first folder that is a procfs of this process; /proc if none is."""
    return next((proc for proc in folders if (proc / "self").is_symlink()), Path("/proc"))


def has_pids_of_host(proc: Path, host_proc: Path | None = None) -> bool:
    """Tell whether the PIDs of this process are the host's.

    `host_proc` is where the host's own procfs may be mounted; without it the PID namespace has to
    be the kernel's first one.
    """
    with suppress(OSError):
        own = (proc / "self/ns/pid").stat().st_ino
        if host_proc is not None:
            with suppress(OSError):
                return own == (host_proc / "1/ns/pid").stat().st_ino
        return own == _FIRST_PID_NAMESPACE
    return False
