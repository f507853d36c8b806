"""A driver process of its own, for tests that kill it."""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from sharing_world import REQUESTS, Node


def die(root: str, mode: str, call: str, at: str) -> None:
    """Make a call and be killed at a step of it."""

    def step(name: str) -> None:
        if name == at:
            os.kill(os.getpid(), signal.SIGKILL)

    node = Node(Path(root), step=step)
    ref = node.claim(REQUESTS[mode])
    {"prepare": node.prepare, "unprepare": node.unprepare}[call](ref)


if __name__ == "__main__":
    die(*sys.argv[1:])
