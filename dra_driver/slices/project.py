"""Turns the inventory into the devices of a ResourceSlice. Pure, and deterministic to the byte.

`Device` objects and counter sets of resource.k8s.io/v1 are plain dicts. Names, attributes and
capacities are the same as in NVIDIA's own DRA driver, so selectors written for it work here. Rules
of the API: a device has at most 32 attributes and capacities together, and devices that share
hardware consume shared counters.

The result does not change when claims create or delete MIG devices: a MIG device that this driver
made stays published as the partition that was allocated.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import astuple

from dra_driver.devices.device import Base, Device, Mig, NodeDevice, Vfio, Whole
from dra_driver.devices.model import GpuUuid, Inventory, MigMode, Refusal
from dra_driver.devices.nvlink import joined
from dra_driver.slices import counters, order
from dra_driver.slices.attributes import Omitted
from dra_driver.slices.consumable import NO_CONSUMABLES
from dra_driver.slices.offer.gpu import GpuBasis, GpuOffer, offer_of
from dra_driver.slices.offer.mig import ALL, MigOffer
from dra_driver.slices.offer.shares import NO_SHARES, ShareOffer
from dra_driver.slices.wire import Published, WireDevice, wire_form

NONE_REFUSED: Mapping[GpuUuid, Refusal] = MappingProxyType({})
"""No GPU is known to refuse the switch to MIG mode."""

WireCounterSet = dict[str, object]
"""A `CounterSet` of resource.k8s.io/v1: name, counters."""


class Withheld(Struct, frozen=True, kw_only=True):
    """A GPU that is not published in any form, and the reason. `index` is NVML's."""

    index: int
    reason: str


class Note(Struct, frozen=True, kw_only=True):
    """The reason why a GPU is published only in part. `index` is NVML's."""

    index: int
    text: str


class Projection(Struct, frozen=True, kw_only=True):
    """What is published from an inventory, and what is left out.

    `sources` says from what each of the `devices` is made, in the same order.
    """

    devices: tuple[WireDevice, ...]
    counter_sets: tuple[WireCounterSet, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    omitted: tuple[Omitted, ...] = ()
    notes: tuple[Note, ...] = ()
    sources: tuple[NodeDevice, ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Projection) and self._published == other._published

    def __hash__(self) -> int:
        return hash(self._published)

    @property
    def _published(self) -> tuple[object, ...]:
        return astuple(self)[:-1]  # without `sources`


def projection(  # noqa: PLR0913 (all that decides what is published)
    inventory: Inventory,
    *,
    with_counters: bool = True,
    with_consumables: bool = True,
    mig: MigOffer = ALL,
    refused: Mapping[GpuUuid, Refusal] = NONE_REFUSED,
    share: ShareOffer = NO_SHARES,
    memory_counters: bool = False,
) -> Projection:
    """Return the devices to publish, in the order of slices/order.py, and what was left out.

    If the API server stores no counters, nothing prevents two claims from getting overlapping parts
    of a GPU, so devices that do not exist yet are not offered. If it drops the fields that let
    several claims have a device, each device is for one claim. A partition is always for one claim:
    it is made for it and deleted after it. `refused` are the GPUs that refuse MIG mode at present.
    With `memory_counters`, every device consumes its memory: Kueue admits no claim whose device
    does not consume the counter that its quota uses (Kueue's KEP-2941).
    """
    withheld = [Withheld(index=gpu.index, reason=gpu.reason) for gpu in inventory.sick]
    offers: dict[int, GpuOffer] = {}
    minors: set[int] = set()
    islands = joined(inventory.gpus)
    for gpu in order.by_address(inventory.gpus):
        if gpu.minor in minors:
            reason = (
                f"another GPU has the same minor number {gpu.minor};"
                " is /proc or /dev mounted twice?"
            )
            withheld.append(Withheld(index=gpu.index, reason=reason))
            continue
        if refused_for := share.refused.get(Whole(gpu=gpu.uuid)):
            withheld.append(Withheld(index=gpu.index, reason=refused_for))
            continue
        refusal = refused.get(gpu.uuid) if mig.switches_modes else None
        if refusal and refusal.is_of_mode and gpu.mig_mode is MigMode.ENABLED:
            refusal = None  # it is in that mode by now
        basis = GpuBasis(
            gpu=gpu,
            inventory=inventory,
            joined=islands,
            mig=mig,
            share=share,
            consumable=share.consumable if with_consumables else NO_CONSUMABLES,
            refusal=refusal,
            with_counters=with_counters,
            memory_counters=memory_counters and with_counters,
        )
        offer = offer_of(basis)
        if offer.devices:
            minors.add(gpu.minor)
            offers[gpu.minor] = offer
        else:
            reason = "; ".join(offer.notes) or mig.why_none_made() or "nothing of it is offered"
            withheld.append(Withheld(index=gpu.index, reason=reason))
    filled = order.in_fill_order(offer.gpu for offer in offers.values())
    in_order = {gpu.minor: offers[gpu.minor] for gpu in filled}
    return _arranged(in_order, _passthrough_devices(inventory), withheld, share)


def _arranged(
    offers: dict[int, GpuOffer],
    for_machines: Iterable[Published],
    withheld: list[Withheld],
    share: ShareOffer,
) -> Projection:
    filled = tuple(offers.values())
    divided = [offer.gpu for offer in filled if offer.of(Mig, exists=False)]
    in_whole_order = order.in_whole_order((offer.gpu for offer in filled), divided)
    whole = [offers[gpu.minor] for gpu in in_whole_order]
    published = [device for offer in whole for device in offer.of(Whole)]
    shares = [device for offer in whole for device in offer.of(Whole, is_share=True)]
    published += _shares_in_order(shares, share)
    published += [device for offer in filled for device in offer.of(Mig)]
    shares = [device for offer in filled for device in offer.of(Mig, is_share=True)]
    published += _shares_in_order(shares, share)
    published += [part for offer in filled for part in offer.of(Mig, exists=False)]
    published += for_machines
    return Projection(
        devices=tuple(device.as_published() for device in published),
        sources=tuple(device.source for device in published),
        counter_sets=tuple(
            counters.counter_set(counters.counter_set_name(offer.gpu), offer.counters)
            for offer in filled
            if offer.counters
        ),
        withheld=tuple(sorted(withheld, key=lambda entry: entry.index)),
        omitted=tuple(_omitted(published)),
        notes=tuple(
            Note(index=offer.gpu.index, text=text) for offer in filled for text in offer.notes
        ),
    )


def _passthrough_devices(inventory: Inventory) -> Iterator[Published]:
    """Yield a device for each GPU that can be given to a virtual machine.

    Nothing else is published of such a GPU, so the device consumes no counters.
    """
    for card in inventory.passthrough:
        if card.problem is None:
            gpu = card.gpu
            base = Vfio(gpu=gpu.uuid, address=gpu.pci_address, number=card.number)
            yield wire_form(
                NodeDevice(gpu=gpu, device=Device(base=base)),
                inventory,
                joined={},
                in_parts=False,
                consumable_by=NO_CONSUMABLES,
            )


def _omitted(published: Sequence[Published]) -> Iterable[Omitted]:
    """Return what devices lack: of each GPU once, because its other devices lack the same."""
    first: dict[tuple[GpuUuid, str, str], Omitted] = {}
    for device in published:
        for one in device.omitted:
            first.setdefault((device.source.gpu.uuid, one.attribute, one.reason), one)
    return first.values()


def _shares_in_order(shares: Sequence[Published], share: ShareOffer) -> Sequence[Published]:
    """Return the shares of several devices in order, packed if that is set for any device.

    Those of a device that waits for a new division come last: so it becomes free, and requests
    that only the new config allows get shares of the others.
    """
    offered: dict[Base, list[Published]] = {}
    for each in shares:
        offered.setdefault(each.source.device.place, []).append(each)
    in_order: list[Published] = []
    for is_waiting in (False, True):
        parts = [part for at, part in offered.items() if (at in share.waiting) is is_waiting]
        divisions = {each[0].source.device.division for each in parts}
        packed = any(share.is_packed(division) for division in divisions if division)
        in_order += order.in_share_order(parts, packed=packed)
    return in_order
