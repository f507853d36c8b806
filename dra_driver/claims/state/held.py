"""What claims have of each GPU stays on offer while others change its MIG mode, or settings change.

In: the records of claims, and what is offered of MIG. Out: the same with what claims have, and a
call when they have given back something that was kept for them. Rule: the scheduler takes an
allocated device into account only as long as it is published. Devices with admin access keep nobody
from anything.
"""

from collections.abc import Callable
from dataclasses import replace

from dra_driver.claims.model.devices import RecordedGpu, RecordedMig, RecordedPartition, undivided
from dra_driver.claims.state.holdings import Holdings
from dra_driver.devices.model import GpuUuid, Inventory
from dra_driver.slices.offer.mig import Held, MigOffer, MigSource


class HeldDevices:
    """What claims have of this node's GPUs. `on_return` is called when what was kept is free."""

    def __init__(self, holdings: Holdings, on_return: Callable[[], None]) -> None:
        self._holdings = holdings
        self._on_return = on_return
        self._keeps_any = False

    def beside(self, offer: MigOffer, inventory: Inventory) -> MigOffer:
        """Return what is offered of an inventory's GPUs, with what claims have of them.

        Raises:
            StateError: the records cannot be read.
        """
        if offer.source is MigSource.AUTO:  # no other one follows the modes of GPUs
            found = {gpu.uuid: _of(self._holdings, gpu.uuid) for gpu in inventory.gpus if gpu.mig}
            offer = replace(offer, held=found)
        self._keeps_any = any(
            offer.keeps_whole(gpu) or offer.keeps_parts(gpu) for gpu in inventory.gpus
        )
        return offer

    def released(self) -> None:
        """Take note that a claim has given something back."""
        if self._keeps_any:
            self._on_return()


def _of(holdings: Holdings, gpu: GpuUuid) -> Held:
    devices = [
        undivided(entry.device)
        for record in holdings.users_of(gpu)
        for entry in record.devices
        if entry.device.gpu == gpu and not entry.admin_access
    ]
    placed = (one for one in devices if isinstance(one, RecordedMig | RecordedPartition))
    return Held(
        whole=any(isinstance(one, RecordedGpu) for one in devices),
        slots=frozenset(one.slot for one in placed),
    )
