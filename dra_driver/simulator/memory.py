"""Memory of simulated GPUs by control group: what processes take, and their limits.

In: an open state, and the machine's own NVML library, whose tool applies the memory limits to each
request. Out: the memory that processes have.
"""

import ctypes
import os
from pathlib import Path

from dra_driver.errors import SetupError
from dra_driver.simulator.layout import NOT_A_MIG_INSTANCE, Fact
from dra_driver.simulator.state import State

_SUCCESS, _REFUSED_BY_LIMIT = 0, 20
_CONTROLLERS = "cgroup.controllers"  # of version 2
_REASONS = {
    2: "its control group is not below the machine's root of control groups",
    3: "its control group is of cgroup v1",
    4: "the state file or the control group cannot be opened",
    6: "its control group does not exist",
    7: "all places for processes or allocations are taken",
    23: "the GPU has too little memory left",
}


def take(
    library: Path, state: State, slot: int, *, pid: int, group: Path | None, memory: int
) -> bool:
    """Let a process in a control group take memory of a GPU; False when a limit forbids it.

    Args:
        library: the machine's NVML library.
        state: the machine's state.
        slot: of the GPU.
        pid: the process, which need not exist.
        group: folder of its control group; None for one that the driver does not know, and that
            no limit applies to.
        memory: in bytes.

    Raises:
        SetupError: there is no such control group, or the GPU itself has not so much left.
    """
    code = ctypes.CDLL(str(library)).nvmlSimulatorAllocate(
        os.fsencode(state.path),
        ctypes.c_uint(slot),
        ctypes.c_uint(pid),
        None if group is None else os.fsencode(group),
        ctypes.c_ulonglong(memory),
    )
    if code not in (_SUCCESS, _REFUSED_BY_LIMIT):
        raise SetupError(
            f"process {pid} cannot take memory: {_REASONS.get(code, f'NVML return code {code}')}"
        )
    return bool(code == _SUCCESS)


def release(state: State, slot: int, pid: int) -> None:
    """End a process on a GPU, which frees its memory."""
    with state.locked() as record:
        for allocation in record.allocations:
            if allocation.active and (allocation.slot, allocation.pid) == (slot, pid):
                allocation.active = 0
                record.gpus[slot].facts[Fact.MEMORY_USED] -= allocation.bytes
        for process in record.processes:
            if (process.slot, process.pid, process.gpu_instance) == (slot, pid, NOT_A_MIG_INSTANCE):
                process.active = 0


def group_of(state: State, pid: int, proc: Path = Path("/proc")) -> Path | None:
    """Return the folder of the control group (v2) that a process of this host is in.

    None on a host with only cgroup v1, where nothing is limited. Raises SetupError if there is no
    such process.
    """
    usual = Path(state.cgroup_root or "/sys/fs/cgroup")
    places = (place for place in (usual, usual / "unified") if (place / _CONTROLLERS).is_file())
    if (root := next(places, None)) is None:
        return None
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError as cause:
        raise SetupError(
            f"the control group of process {pid} is not known: {cause.strerror}; name it by its"
            " folder (--cgroup)"
        ) from cause
    for line in lines:
        if line.startswith("0::/"):
            return root / line.removeprefix("0::/")
    return root
