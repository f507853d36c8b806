"""What processes on simulated GPUs do, as NVML reports it: how busy they are, and in which list.

In: a machine, and the id of a process that is on a GPU or MIG device already, because it has memory
there (memory.py, mig.py). Out: its entries in the shared state. A process that does nothing has no
sample, as on a card; one that has ended can keep its last one.
"""

from msgspec import Struct

from dra_driver.errors import SetupError
from dra_driver.simulator.layout import ProcessKind
from dra_driver.simulator.machine import Machine
from dra_driver.simulator.state import State

UNKNOWN_PERCENT = 0xFFFFFFFF
"""What drivers have been seen to report instead of a percentage."""


class Activity(Struct, frozen=True, kw_only=True):
    """What a process does. Percentages are of the whole GPU; all 0 means idle.

    Attributes:
        kind: in which of NVML's lists it is.
        sm: how much of the time its kernels run.
        memory_access: how much of the time memory is read or written.
        encoder: how busy it keeps the encoders.
        decoder: how busy it keeps the decoders.
        hides_memory: NVML does not know how much memory it has.
        sampled_us: the time of day of its last sample, in microseconds; 0: it goes on.
    """

    kind: ProcessKind = ProcessKind.COMPUTES
    sm: int = 0
    memory_access: int = 0
    encoder: int = 0
    decoder: int = 0
    hides_memory: bool = False
    sampled_us: int = 0


def let_do(machine: Machine, pid: int, activity: Activity) -> None:
    """Let a process do something on all GPUs and MIG devices that it is on.

    Raises SetupError if it is on none.
    """
    with State(machine.state_file) as now, now.locked() as record:
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
            f"process {pid} is on no simulated GPU; let it have memory first (simulate set --mib)"
        )
