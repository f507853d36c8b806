"""A supervisor in a process of its own, for tests that kill one."""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from worlds.mps import MpsDomains


def supervise(root: str, at: str) -> None:
    """Supervise until killed, which a step may do."""

    def step(_domain: str, name: str) -> None:
        if name == at:
            os.kill(os.getpid(), signal.SIGKILL)

    MpsDomains(Path(root)).supervisor(step).run()


if __name__ == "__main__":
    supervise(*sys.argv[1:])
