"""`python3 -m … [--start FILE] PROGRAM …`: runs a program that ends with the benchmark.

In: a program, and a session of its own. Out: its exit status, or its signal. The kernel tells this
process when the thread that started it ends, in any way, and then it ends all processes below it:
neither an MPS daemon with its servers nor a user's command with its workers outlives a benchmark,
even one that was killed. Workers that begin a session of their own are found, because this process
adopts those whose parents have ended. With `--start` the program begins at the moment that the file
will contain, and this process prints what a script prints where our package is missing
(bench/commands.py).
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from dra_driver.bench.descendants import signal_descendants

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_GRACE_SECONDS = 5
_POLL_SECONDS = 0.02
_START = "--start"


class _Parent:
    """Acts on the end of the parent. A SIGTERM while the parent lives is ignored."""

    def __init__(self) -> None:
        self._pid = os.getppid()
        self.is_gone = False

    def on_term(self, _number: int, _frame: FrameType | None) -> None:
        """End all processes below if the parent, which would do so, is gone."""
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
    moment = None
    if words[0] == _START:
        moment, words = _wait(Path(words[1])), words[2:]
    began = uptime()
    try:
        child = subprocess.Popen(words)
    except OSError as error:
        sys.stderr.write(f"error: cannot run {words[0]}: {error.strerror}\n")
        return 127
    status = child.wait()
    if parent.is_gone:
        _kill()
    if moment is not None:
        seconds, late = uptime() - began, max(0.0, began - moment)
        _say(f'"ended","began":{began:.3f},"seconds":{seconds:.3f},"late_seconds":{late:.3f}')
    signal_descendants(os.getpid(), signal.SIGKILL)
    if status < 0:
        if os.getpid() == 1:  # signals do not end the first process of a container
            return 128 - status
        if -status == signal.SIGTERM:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def uptime() -> float:
    """Return the seconds since this machine started, as in /proc/uptime."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _wait(file: Path) -> float:
    """Report that the program can begin, and wait for its moment."""
    mps = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "")
    _say(f'"ready","at":{uptime():.3f},"mps":"{mps}"')
    moment = None
    while moment is None:
        time.sleep(_POLL_SECONDS)
        try:
            moment = float(file.read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
    time.sleep(max(0.0, moment - uptime()))
    return moment


def _say(said: str) -> None:
    # The program's last line may not end with a newline.
    os.write(sys.stdout.fileno(), f'\n{{"bench":1,"event":{said}}}\n'.encode())


def _kill(*_: object) -> None:
    signal_descendants(os.getpid(), signal.SIGKILL)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
