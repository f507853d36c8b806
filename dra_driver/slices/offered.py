"""All that decides what is published of a node's GPUs, together, as commands ask it.

In: what is offered of MIG and shares, and the settings of order and counters. Out: the projection.
Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_driver.devices.model import GpuUuid, Inventory, Refusal
from dra_driver.slices.memory_counters import with_memory_counters
from dra_driver.slices.offer.mig import ALL, MigOffer
from dra_driver.slices.offer.shares import NO_SHARES, ShareOffer
from dra_driver.slices.order import GpuOrder
from dra_driver.slices.project import NONE_REFUSED, Projection, projection


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """What a node offers of its GPUs: all that `projection` is told beside the GPUs themselves."""

    mig: MigOffer = ALL
    refused: Mapping[GpuUuid, Refusal] = field(default_factory=lambda: NONE_REFUSED)
    share: ShareOffer = NO_SHARES
    gpu_order: GpuOrder = GpuOrder.LEAST_CAPABLE
    memory_counters: bool = False

    def projection(self, inventory: Inventory) -> Projection:
        """Return what is published of these GPUs."""
        found = projection(
            inventory,
            mig=self.mig,
            refused=self.refused,
            share=self.share,
            gpu_order=self.gpu_order,
        )
        return with_memory_counters(found) if self.memory_counters else found


OF_DEFAULTS = Offered()
"""What is offered with no setting given, on a node without shares."""
