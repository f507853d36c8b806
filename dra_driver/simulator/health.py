"""The health of simulated GPUs: what a card reports when it is sick, and what repairs it.

In: a GPU's record, and the fault of the GPU or its NVLinks. Out: the changed record; a
link between two GPUs changes at both, while one to a switch has only one GPU. As on real cards, a
reset completes the recovery actions that need one, replaces bad memory by spare memory, and brings
links up again; a reboot does this for all GPUs, and completes all other actions; memory that could
not be replaced stays bad; heat and power do not change.
"""

import enum

from dra_driver.errors import SetupError
from dra_driver.simulator import layout
from dra_driver.simulator.layout import ABSENT, Fact, LinkEnd, Text

RecoveryAction = enum.IntEnum(
    "RecoveryAction",
    "NONE GPU_RESET NODE_REBOOT DRAIN_P2P DRAIN_AND_RESET RECOVER_IMEX_DOMAIN BUS_RESET "
    "SYSTEM_REBOOT",
    start=0,
)
"""The driver's recovery actions for a GPU."""

Rows = enum.Enum("Rows", "WELL PENDING FAILED")
"""The state of bad rows of memory."""

Slowdown = enum.IntFlag("Slowdown", [("NONE", 0), ("THERMAL", 0x48), ("POWER_BRAKE", 0x88)])
"""Reasons of a slowdown as NVML reports them: each with the bit for a slowdown of any kind."""

FabricState = enum.IntEnum("FabricState", "NOT_STARTED IN_PROGRESS COMPLETED", start=1)
"""The states of joining a fabric."""

_BY_RESET = frozenset(
    {RecoveryAction.GPU_RESET, RecoveryAction.DRAIN_P2P, RecoveryAction.DRAIN_AND_RESET}
)


def reset(gpu: layout.GpuRecord) -> None:
    """Change a GPU's health as a reset does."""
    if gpu.facts[Fact.RECOVERY_ACTION] in _BY_RESET:
        gpu.facts[Fact.RECOVERY_ACTION] = RecoveryAction.NONE
    if gpu.facts[Fact.ROWS_PENDING] == 1:
        gpu.facts[Fact.ROWS_PENDING] = 0
        gpu.facts[Fact.ROWS_UNCORRECTABLE] += 1
    for fact in (Fact.ECC_UNCORRECTED_VOLATILE, Fact.RETIRED_PAGES):
        _clear(gpu, fact)


def boot(gpu: layout.GpuRecord) -> None:
    """Change a GPU's health as a reboot does."""
    reset(gpu)
    for fact in (Fact.RECOVERY_ACTION, Fact.SLOWDOWN):
        _clear(gpu, fact)


def set_rows(gpu: layout.GpuRecord, rows: Rows) -> None:
    """Set bad memory to be replaced at the next reset, or to stay bad.

    Raises SetupError if the card does not report it.
    """
    if gpu.facts[Fact.ROWS_PENDING] != ABSENT:
        gpu.facts[Fact.ROWS_PENDING] = int(rows is Rows.PENDING)
        gpu.facts[Fact.ROWS_FAILED] = int(rows is Rows.FAILED)
    elif gpu.facts[Fact.RETIRED_PAGES] != ABSENT and rows is not Rows.FAILED:
        gpu.facts[Fact.RETIRED_PAGES] = int(rows is Rows.PENDING)
    else:
        raise SetupError("this card does not report that of its memory")


def set_uncorrected(gpu: layout.GpuRecord, count: int) -> None:
    """Set how many uncorrectable errors a GPU has had since the driver was loaded.

    Raises SetupError if the card has no ECC, or it is off.
    """
    if gpu.facts[Fact.ECC_CURRENT] != 1:
        raise SetupError("this card has no ECC, or it is off")
    gpu.facts[Fact.ECC_UNCORRECTED] += max(count - gpu.facts[Fact.ECC_UNCORRECTED_VOLATILE], 0)
    gpu.facts[Fact.ECC_UNCORRECTED_VOLATILE] = count


def set_fact(gpu: layout.GpuRecord, fact: Fact, value: int) -> None:
    """Set a fact that a GPU's driver reports.

    Raises SetupError if the card, or this version of the driver, does not report it.
    """
    if gpu.facts[fact] == ABSENT:
        raise SetupError(
            f"this card, or its driver, reports no {fact.name.lower().replace('_', ' ')}"
        )
    gpu.facts[fact] = value


def set_link(record: layout.StateRecord, slot: int, number: int, *, is_up: bool) -> None:
    """Bring a link of a GPU down or up.

    Raises SetupError if the card has no such link, or it leads to nothing.
    """
    links = record.gpus[slot].links
    if not (0 <= number < layout.MAX_LINKS and links[number].present):
        there = sum(link.present for link in links)
        raise SetupError(f"the card has no NVLink {number}; it has {there}, numbered from 0")
    if links[number].kind == LinkEnd.NOTHING:
        raise SetupError(f"NVLink {number} of the card leads to nothing, so it is never up")
    links[number].active = int(is_up)
    if links[number].kind == LinkEnd.GPU:
        _other_end(record, slot, number).active = int(is_up)


def retrain(record: layout.StateRecord, slot: int) -> None:
    """Bring up all connected links of a GPU, as a reset does."""
    for number, link in enumerate(record.gpus[slot].links):
        if link.present and link.kind != LinkEnd.NOTHING:
            set_link(record, slot, number, is_up=True)


def _other_end(record: layout.StateRecord, slot: int, number: int) -> layout.LinkRecord:
    """Return the link at the other GPU: among several, the one in the same position."""
    address = _address(record, slot)
    peer = bytes(record.gpus[slot].links[number].remote_bus_id)
    before = [link for link in record.gpus[slot].links[:number] if link.remote_bus_id == peer]
    others = [record.gpus[at] for at in range(record.gpu_count) if _address(record, at) == peer]
    back = [link for gpu in others for link in gpu.links if link.remote_bus_id == address]
    end: layout.LinkRecord = back[len(before)]
    return end


def _address(record: layout.StateRecord, slot: int) -> bytes:
    return bytes(record.gpus[slot].texts[Text.PCI_BUS_ID].value)


def _clear(gpu: layout.GpuRecord, fact: Fact) -> None:
    if gpu.facts[fact] != ABSENT:
        gpu.facts[fact] = 0
