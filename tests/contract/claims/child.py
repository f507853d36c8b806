"""A driver process of its own, for tests that need two of them or kill one."""

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from dra_driver.claims.locks import NodeLocks
from dra_driver.errors import ConflictError
from worlds.configs import CONFIGS
from worlds.driver import Driver


def hold(file: str, uid: str) -> None:
    """Hold a claim's lock for ever."""
    locks = NodeLocks(Path(file), time.monotonic)
    with locks.claim(uid, time.monotonic() + 30):
        print("held", flush=True)  # noqa: T201
        time.sleep(600)


def contend(root: str, name: str, device: str, rounds: str) -> None:
    """Get a GPU that another process wants as well, again and again, and be alone with it."""
    driver = Driver(Path(root))
    alone = Path(root) / "alone"
    # Both claims exist for both processes: whoever has the GPU has a right to it.
    refs = {one: driver.api.add(device, uid=f"uid-{one}", name=one) for one in ("one", "two")}
    for _ in range(int(rounds)):
        while True:
            try:
                driver.prepare(refs[name])
                break
            except ConflictError:
                time.sleep(0.001)
        os.close(os.open(alone, os.O_CREAT | os.O_EXCL))  # fails if the other one has it too
        with (Path(root) / "wins").open("a") as wins:
            wins.write("won\n")
        alone.unlink()
        driver.unprepare(refs[name])


def die(root: str, mode: str, call: str, at: str) -> None:
    """Make a call and be killed at a step of it."""

    def step(name: str) -> None:
        if name == at:
            os.kill(os.getpid(), signal.SIGKILL)

    driver = Driver(Path(root), step=step)
    ref = driver.api.add("gpu-1", configs=CONFIGS[mode])
    {"prepare": driver.prepare, "unprepare": driver.unprepare}[call](ref)


if __name__ == "__main__":
    {"hold": hold, "contend": contend, "die": die}[sys.argv[1]](*sys.argv[2:])
