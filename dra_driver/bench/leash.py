"""`python3 -m dra_driver.bench.leash PROGRAM …`: becomes a program that ends with its parent.

The kernel sends it SIGTERM when the thread that started it ends, in whatever way: an MPS daemon or
a command of the user's outlives no benchmark, not even one that was killed.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(words: list[str]) -> int:
    """Become the program; return only where that cannot be."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        os.execvp(words[0], words)  # noqa: S606 (what it is for)
    except OSError as error:
        sys.stderr.write(f"error: cannot run {words[0]}: {error.strerror}\n")
    return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
