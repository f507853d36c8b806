"""The MPS control daemons of a node, found and queried as by a person on the node.

This uses nothing of the driver's own code: NVIDIA's program talks to the daemon through the claim's
pipe directory.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dra_driver.mps.processes import environment_of
from testbed.commands import TestbedError, run, wait_until
from testbed.driver import Place

PROGRAM = "usr/bin/nvidia-cuda-mps-control"
_BUSY = "Cannot send command"
_BUSY_SECONDS = 30.0
MARK = "DRA_DRIVER_MPS_DOMAIN"
"""The variable of all processes of an MPS domain, with its folder."""


def can_run_mps(driver_root: Path) -> bool:
    """Whether a driver root has NVIDIA's MPS programs, for which there is no stand-in."""
    return (driver_root / PROGRAM).is_file()


def ask(place: Place, claim: str, command: str) -> str:
    """Send a query to the daemon of a claim (by UID); return the answer.

    For a claim with only MIG devices, that is the daemon of the first. A daemon answers one caller
    at a time and rejects others, some without a message: so this retries.
    """
    folder = place.mps / "domains" / claim
    if not folder.exists():
        folder = folder.with_name(f"{claim}_mig_0")
    # Relative, because the path of a socket holds 107 bytes and the folder's has as many.
    env = {"CUDA_MPS_PIPE_DIRECTORY": ".", "LD_LIBRARY_PATH": str(folder / "lib")}
    program = (place.driver_root / PROGRAM,)
    end = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            said = run(program, stdin=f"{command}\n", env=env, cwd=folder / "run" / "own").strip()
            if said or time.monotonic() > end:
                return said
        except TestbedError as error:
            if _BUSY not in str(error) or time.monotonic() > end:
                raise
        time.sleep(0.02)


def processes(plugins: Path) -> dict[int, str]:
    """The PIDs of all MPS daemons and servers below a plugins folder, with their claims' UIDs."""
    domains = {}
    for name in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):  # it has ended
            if name.read_bytes().startswith(b"nvidia-cuda-mps"):
                pid = int(name.parent.name)
                folder = Path(environment_of(pid).get(MARK, "/"))
                if plugins in folder.parents:
                    domains[pid] = folder.name
    return domains


def end_all(plugins: Path) -> None:
    """Kill all MPS daemons and servers below a plugins folder."""

    def gone() -> bool:
        left = processes(plugins)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    wait_until(gone, "MPS daemons to end", timeout=30)


@contextmanager
def slow_start(driver_root: Path, seconds: float) -> Iterator[None]:
    """During a block, delay the start of daemons by this long."""
    program = driver_root / PROGRAM
    real = program.with_name("slowed-down") / program.name
    script = f'#!/bin/sh\n[ "$1" != -d ] || /bin/sleep {seconds}\nexec {real} "$@"\n'
    new = program.with_name(f"{program.name}.new")
    new.write_text(script)
    new.chmod(0o755)
    real.parent.mkdir()
    real.hardlink_to(program)
    new.replace(program)
    try:
        yield
    finally:
        real.replace(program)
        real.parent.rmdir()
