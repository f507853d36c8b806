"""The processes, mounts, control groups and files of a run, and their removal.

All processes of a run have a variable with its name, MPS daemons one with their folder, which is
below the run's, and those of a container, also while it is being made, a control group with the
run's name. So all processes of a killed run are found, and no others.
"""

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

from testbed import mps
from testbed.mounts import mounts_below, unmount_all

from dra_driver.errors import StateError
from dra_driver.mps.processes import environment_of

MARK = "DRA_DRIVER_HARDWARE_RUN"
CGROUPS = Path("/sys/fs/cgroup")
_END_SECONDS = 20.0


def of_run(run: str, folder: Path) -> set[int]:
    """Return the PIDs of a run's processes, except this one."""
    ours = set(mps.processes(folder))
    for group in groups(run):
        with suppress(OSError):  # gone meanwhile
            ours |= {int(pid) for pid in (group / "cgroup.procs").read_text().split()}
    pids = {int(entry.name) for entry in Path("/proc").glob("[0-9]*")}
    ours |= {pid for pid in pids if environment_of(pid).get(MARK) == run}
    return ours - {0, os.getpid()}  # 0 is a process outside this PID namespace


def end_all(run: str, folder: Path) -> None:
    """Kill the processes of a run. Raises StateError if one of them does not end."""
    end = time.monotonic() + _END_SECONDS
    while left := of_run(run, folder):
        if time.monotonic() > end:
            raise StateError(f"processes {sorted(left)} do not end; see dmesg, end them, and retry")
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def groups(run: str) -> list[Path]:
    """Return the control groups of a run's containers; of cgroup v1 one in each hierarchy."""
    return [*CGROUPS.glob(f"dra-{run}-*"), *CGROUPS.glob(f"*/dra-{run}-*")]


def remove_groups(run: str) -> None:
    """Remove the control groups of a run's containers, whose processes have ended."""
    for group in groups(run):
        with suppress(OSError):  # gone meanwhile
            group.rmdir()


def remove_folder(folder: Path) -> None:
    """Remove a run's folder. Raises StateError while something is mounted in it."""
    if mounts_below(folder, itself=True):
        unmount_all(folder)
    if left := mounts_below(folder, itself=True):
        raise StateError(f"{left[0]} cannot be unmounted; unmount it, and restore again")
    shutil.rmtree(folder, ignore_errors=True)
