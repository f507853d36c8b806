"""What claims may have of the memory of GPUs by shares: read from their records.

In: the claims that hold something of a GPU (claims/state/holdings.py), or one record. Out: their
`MemoryPart`s. Every limit of a pod is made up from these, so that none has to be counted twice.
"""

from collections.abc import Iterator

from dra_driver.claims.model.record import ClaimRecord
from dra_driver.claims.state.holdings import Holdings
from dra_driver.devices.model import GpuUuid
from dra_driver.sharing import shares
from dra_driver.sharing.base import SharingPlan
from dra_driver.sharing.enforcement import MemoryPart


def tenants(holdings: Holdings, gpu: GpuUuid) -> list[MemoryPart]:
    """Return the parts of the claims that have shares of a GPU.

    Raises:
        StateError: the records cannot be read.
    """
    return [
        part
        for record in holdings.holders_of(gpu)
        for plan, part in parts_of(record)
        if any(place.gpu == gpu for place in plan.places)
    ]


def of_pod(holdings: Holdings, pod: str) -> list[MemoryPart]:
    """Return the parts of all claims of a pod that control groups limit.

    Raises:
        StateError: the records cannot be read.
    """
    return [
        part
        for record in holdings.records.all()
        if holdings.holds(record)
        for _, part in parts_of(record)
        if part.pod == pod
    ]


def parts_of(record: ClaimRecord) -> Iterator[tuple[SharingPlan, MemoryPart]]:
    """Yield the plans of shares of a claim, with what they say of memory.

    Raises:
        StateError: a plan cannot be read.
    """
    for plan in record.plans:
        if plan.strategy == shares.NAME:
            yield plan, shares.memory_part(plan)
