"""`python3 -m … PROGRAM …`: runs a program that ends with the benchmark.

In: a program, and a session of its own. Out: its exit status, or its signal. The kernel tells this
process when the thread that started it ends, in whatever way, and it ends all that is below it: an
MPS daemon with its servers, or a command of the user's with its workers, outlives no benchmark, not
even one that was killed. Workers that begin a session of their own are found, because this process
adopts those whose parents have ended.
"""

import ctypes
import os
import signal
import subprocess
import sys
from types import FrameType

from dra_driver.admin.bench.descendants import signal_descendants

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_GRACE_SECONDS = 5


class _Parent:
    """What is done when the parent has ended. A SIGTERM of a parent that lives is for everybody."""

    def __init__(self) -> None:
        self._pid = os.getppid()
        self.is_gone = False

    def on_term(self, _number: int, _frame: FrameType | None) -> None:
        """End all that is below, if there is nobody else to do it."""
        if os.getppid() == self._pid or self.is_gone:
            return
        self.is_gone = True
        signal.alarm(_GRACE_SECONDS)
        signal_descendants(os.getpid(), signal.SIGTERM)


def main(words: list[str]) -> int:
    """Run the program, and end as it did."""
    parent = _Parent()
    signal.signal(signal.SIGTERM, parent.on_term)
    signal.signal(signal.SIGALRM, _kill)
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        child = subprocess.Popen(words)
    except OSError as error:
        sys.stderr.write(f"error: cannot run {words[0]}: {error.strerror}\n")
        return 127
    status = child.wait()
    if parent.is_gone:
        _kill()
    signal_descendants(os.getpid(), signal.SIGKILL)
    if status < 0:
        if -status == signal.SIGTERM:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def _kill(*_: object) -> None:
    signal_descendants(os.getpid(), signal.SIGKILL)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
