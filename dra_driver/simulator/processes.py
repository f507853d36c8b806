"""Processes on simulated GPUs: those from boot on, their activity, and their end.

In: the raw record, under the writers' lock. Out: entries in it, in which NVML finds processes. A
reset of the GPU or a reboot ends them; after a reboot those of the profile are started again. As on
a card, an idle process has no sample; one that has ended can keep its last one.
"""

from collections.abc import Sequence

from msgspec import Struct

from dra_driver.errors import SetupError
from dra_driver.simulator import layout
from dra_driver.simulator.layout import ProcessKind
from dra_driver.simulator.profile import Process

UNKNOWN_PERCENT = 0xFFFFFFFF
"""A value that real drivers report instead of a percentage."""


class Activity(Struct, frozen=True, kw_only=True):
    """A process's activity. Percentages are of the whole GPU; all 0 means idle.

    Attributes:
        kind: the NVML list that it is in.
        sm: how much of the time its kernels run.
        memory_access: how much of the time memory is read or written.
        encoder: how busy it keeps the encoders.
        decoder: how busy it keeps the decoders.
        hides_memory: NVML does not know how much memory it has.
        sampled_us: the time of its last sample, in microseconds; 0: it is still active.
    """

    kind: ProcessKind = ProcessKind.COMPUTES
    sm: int = 0
    memory_access: int = 0
    encoder: int = 0
    decoder: int = 0
    hides_memory: bool = False
    sampled_us: int = 0


def occupy(record: layout.StateRecord, slot: int, residents: Sequence[Process]) -> None:
    """Start processes on a GPU. Raises SetupError if all places for processes are taken."""
    free = (place for place in record.processes if not place.active)
    for resident in residents:
        place = next(free, None)
        if place is None:
            raise SetupError(f"the simulator holds at most {layout.MAX_PROCESSES} processes")
        layout.clear(place)
        place.slot = slot
        place.gpu_instance = place.compute_instance = layout.NOT_A_MIG_INSTANCE
        place.pid = resident.pid
        place.kind = ProcessKind.DRAWS if resident.kind == "graphics" else ProcessKind.COMPUTES
        place.memory = resident.memory_mib * 1024**2
        place.active = 1


def vacate(record: layout.StateRecord, slot: int) -> None:
    """End all processes on a GPU, and remove the memory limits that the driver keeps for it."""
    gpu = record.gpus[slot]
    for process in record.processes:
        if process.slot == slot:
            process.active = 0
    for allocation in record.allocations:
        if allocation.active and allocation.slot == slot:
            allocation.active = 0
            gpu.facts[layout.Fact.MEMORY_USED] -= allocation.bytes
    for limit in record.memory_limits:
        if limit.slot == slot:
            limit.active = 0


def let_do(record: layout.StateRecord, pid: int, activity: Activity) -> None:
    """Set a process's activity on all GPUs and MIG devices that it is on.

    Raises SetupError if it is on none: it must have memory there first (memory.py, mig.py).
    """
    places = [process for process in record.processes if process.active and process.pid == pid]
    for place in places:
        place.kind = activity.kind
        place.sm = activity.sm
        place.memory_access = activity.memory_access
        place.encoder = activity.encoder
        place.decoder = activity.decoder
        place.memory_hidden = int(activity.hides_memory)
        place.sampled_us = activity.sampled_us
    if not places:
        raise SetupError(
            f"process {pid} is on no simulated GPU; give it memory first (simulate set --mib)"
        )
