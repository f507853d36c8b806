"""Processes on a GPU: those from boot on, such as a display server on a laptop's, and their end.

In: what a profile says of them. Out: their places in the shared state, where NVML finds them. A
reset of the GPU or a reboot ends them; after a reboot they are started again.
"""

from collections.abc import Sequence

from dra_driver.errors import SetupError
from dra_driver.simulator import layout
from dra_driver.simulator.layout import ProcessKind
from dra_driver.simulator.profile import Process


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
    """End all processes on a GPU, and forget the memory limits that the driver keeps for it."""
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
