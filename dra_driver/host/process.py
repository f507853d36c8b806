"""How this process is kept: its memory, and what it tells of its threads.

In: signals. Out: no pauses for garbage that is none, and stacks for who asks why it hangs.
"""

import gc
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path


def spare_lasting_objects() -> None:
    """Let the garbage collector pass over what start-up has made, as all of it stays.

    Else each full collection stops every thread for some 15 ms, in the middle of a prepare.
    """
    gc.collect()
    gc.freeze()


def dump_stacks_at_sigusr2(path: Path) -> None:
    """Write the stacks of all threads to a file at each SIGUSR2, for who asks why it hangs.

    Where the file cannot be written, they go to standard error. For the main thread only, which
    writes them between two of its instructions: faulthandler, which needs no Python for it, reads
    the stacks of threads while they run, and can end the process by that.
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
