"""A driver process of its own, for tests that kill it."""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from worlds.configs import REQUESTS
from worlds.node import Node


def die(root: str, mode: str, call: str, at: str) -> None:
    """Make a call and be killed at a step of it, `name`, or `name:2` for its second time."""
    name_at, _, times = at.partition(":")
    seen = 0

    def step(name: str) -> None:
        nonlocal seen
        seen += name == name_at
        if seen == int(times or 1):
            os.kill(os.getpid(), signal.SIGKILL)

    node = Node(Path(root), played=False, step=step)
    ref = node.claim_migs(0, 1) if mode == "mig" else node.claim_gpus(REQUESTS[mode])
    {"prepare": node.driver.prepare, "unprepare": node.driver.unprepare}[call](ref)


if __name__ == "__main__":
    die(*sys.argv[1:])
