"""Adds the devices that offer GPUs to virtual machines. Pure.

In: the GPUs on the PCI bus that can be passed through, and what else is offered of each. Out: one
more device for each GPU. It consumes all counters of its GPU, so the scheduler allocates either
this device or others of the GPU, never both (KEP-4815). If a GPU has no counters, it gets `memory`,
which all its devices consume. If the GPU driver does not have a GPU, only this device is offered,
and it consumes nothing.
"""

from collections.abc import Iterable, Mapping

from dra_driver.devices.device import Device, NodeDevice, Vfio
from dra_driver.devices.model import GpuUuid, Inventory, PassthroughGpu
from dra_driver.slices import counters
from dra_driver.slices.attributes import Omitted
from dra_driver.slices.consumable import NO_CONSUMABLES
from dra_driver.slices.offer.gpu import GpuOffer, count_memory
from dra_driver.slices.wire import Published, wire_form

_NO_COUNTERS = (
    "the API server does not store counters, without which nothing keeps a claim for a virtual "
    "machine from one for the GPU (feature gate DRAPartitionableDevices)"
)


def vfio(card: PassthroughGpu) -> Device:
    """Return the device by which a virtual machine gets a GPU of the PCI bus."""
    return Device(base=Vfio(gpu=card.gpu.uuid, address=card.gpu.pci_address, number=card.number))


def offer_passthrough(
    offers: Iterable[GpuOffer], inventory: Inventory, *, with_counters: bool
) -> tuple[Published, ...]:
    """Offer GPUs to virtual machines, in addition to what else is offered of them.

    Returns the devices of GPUs that the GPU driver does not have.
    """
    by_uuid: Mapping[GpuUuid, GpuOffer] = {offer.gpu.uuid: offer for offer in offers}
    there = {gpu.uuid for gpu in inventory.gpus}
    away: list[Published] = []
    for card in inventory.passthrough:
        offer = by_uuid.get(card.gpu.uuid)
        if offer is not None:
            reason = card.problem or _why_not(offer, with_counters=with_counters)
            if reason is None:
                _offer_beside(offer, card, inventory)
            else:
                offer.notes.append(f"it is not offered to virtual machines: {reason}")
        elif (
            card.gpu.uuid not in there and card.problem is None and card.is_away and not card.hangs
        ):
            away.append(_published(card, inventory)[0])
    return tuple(away)


def _why_not(offer: GpuOffer, *, with_counters: bool) -> str | None:
    if not with_counters:
        return _NO_COUNTERS
    if offer.gpu.mig_instances and not all(each.made_here for each in offer.gpu.mig_instances):
        return "it is divided into MIG devices"
    if offer.gpu.was_put_in_mig_mode:
        return "it is in MIG mode"
    return None if counters.memory(offer.gpu) else "it does not say how much memory it has"


def _offer_beside(offer: GpuOffer, card: PassthroughGpu, inventory: Inventory) -> None:
    if not offer.counters:
        count_memory(offer)
    published, omitted = _published(card, inventory)
    offer.passthrough = published.consume(offer.counters)
    offer.omitted += omitted


def _published(card: PassthroughGpu, inventory: Inventory) -> tuple[Published, tuple[Omitted, ...]]:
    form, omitted = wire_form(
        NodeDevice(gpu=card.gpu, device=vfio(card)),
        inventory,
        joined={},
        in_parts=False,
        consumable_by=NO_CONSUMABLES,
    )
    return form, tuple(omitted)
