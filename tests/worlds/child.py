"""Processes of their own for tests that need two drivers, or kill a driver or a supervisor."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from unittest import mock

from dra_driver.claims.state.locks import NodeLocks
from dra_driver.errors import ConflictError
from worlds.configs import PATIENCE
from worlds.driver import Driver
from worlds.moments import of_supervisors
from worlds.mps import MpsDomains
from worlds.node import Node
from worlds.ways import WAYS

TESTS = Path(__file__).parents[1]

RUN = """\
import runpy, sys
sys.modules["rich"] = None  # as dra_driver/cli.py has it: a quarter of a child's start
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def start(*words: object, module: str = "worlds.child", **options: Any) -> "subprocess.Popen[Any]":
    """Start one: a function of this module by name, and its arguments."""
    command = [sys.executable, "-c", RUN, module, *map(str, words)]
    return subprocess.Popen(command, cwd=TESTS, **options)


def fork(name: str, *words: object) -> ForkServerProcess:
    """Start one as a fork of a process that has imported everything, in a hundredth of the time.

    What it prints is the test's. It has no thread of the test's, and none of its open files.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    # Python before 3.14 does not tell the server where modules are.
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path))):
        forkserver.ensure_running()
    process = context.Process(target=globals()[name], args=tuple(map(str, words)), daemon=True)
    process.start()
    return process


def was_killed(process: ForkServerProcess) -> bool:
    """Wait for its end; return whether it was killed, as it should be."""
    process.join(PATIENCE)
    return process.exitcode == -signal.SIGKILL


def die_at(at: str) -> Callable[[str], None]:
    """A step that kills this process: at `name`, or at the second time of it for `name:2`."""
    name_at, _, times = at.partition(":")
    seen = 0

    def step(name: str) -> None:
        nonlocal seen
        seen += name == name_at
        if seen == int(times or 1):
            os.kill(os.getpid(), signal.SIGKILL)

    return step


def hold(file: str, uid: str) -> None:
    """Hold a claim's lock for ever."""
    locks = NodeLocks(Path(file), time.monotonic, on_other=lambda: None)
    with locks.claim(uid, time.monotonic() + 30):
        print("held", flush=True)  # noqa: T201
        time.sleep(600)


def contend(root: str, name: str, device: str, rounds: str) -> None:
    """Get a GPU that another process wants as well, again and again, and be alone with it."""
    driver = Driver(Path(root))
    alone = Path(root) / "alone"
    # Both claims exist for both processes: the one that has the GPU has a right to it.
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


def die(root: str, name: str, call: str, at: str) -> None:
    """Make a call for a claim with a way to use GPUs, and be killed at a moment of it."""
    way = WAYS[name]()
    node = way.open(Path(root), die_at(at))
    when, _, asked = at.partition(" ")
    if when in ("before", "after"):
        setattr(node.mps.requests, asked, _deadly(getattr(node.mps.requests, asked), when))
    ref = way.claim(node)
    {"prepare": node.driver.prepare, "unprepare": node.driver.unprepare}[call](ref)


def die_taking_over(root: str, at: str) -> None:
    """Take a node over from NVIDIA's driver, and be killed at a step of it."""
    Node(Path(root), step=die_at(at)).take_over().run()


def _deadly(call: Callable[..., Any], when: str) -> Callable[..., Any]:
    """A call that kills this process, before or after it does what it does."""

    def made(*words: Any) -> None:
        if when == "after":
            call(*words)
        os.kill(os.getpid(), signal.SIGKILL)

    return made


def supervise(root: str, at: str) -> None:
    """Supervise until killed, which a step may do."""
    with of_supervisors(die_at(at)):
        MpsDomains(Path(root)).supervisor()._run()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
