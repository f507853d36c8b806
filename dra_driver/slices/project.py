"""The inventory as devices of a ResourceSlice: one pure function, deterministic to the byte.

In: what the machine has. Out: `Device` objects and counter sets of resource.k8s.io/v1 as plain
dicts, and what was left out with the reason. Names, attributes and capacities are those of NVIDIA's
own DRA driver, so that every selector written for it works here. Rules of the API: at most 32
attributes and capacities together, and what shares hardware consumes shared counters.

What claims make and unmake changes nothing here: a MIG device that this driver made stays
published as the partition it was allocated as. Nothing here talks to a server or logs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import assert_never

from dra_driver.devices import partitions as dividing
from dra_driver.devices.kinds import Device, NodeDevice, name_of
from dra_driver.devices.model import (
    Gpu,
    GpuUuid,
    Inventory,
    MigDevice,
    MigMode,
    Partition,
    Refusal,
)
from dra_driver.slices import counters, order
from dra_driver.slices.attributes import Attributes, Omitted, describe
from dra_driver.slices.mig_offer import ALL, MigOffer, MigSource
from resource_nvidia_com.quantity import Quantity

MOST_FACTS = 32
"""Attributes and capacities that one device may have together."""

NONE_REFUSED: Mapping[GpuUuid, Refusal] = MappingProxyType({})
"""Every GPU that is to be divided can be switched to MIG mode, as far as is known."""

WireDevice = dict[str, object]
"""A `Device` of resource.k8s.io/v1: name, attributes, capacity, consumesCounters."""

WireCounterSet = dict[str, object]
"""A `CounterSet` of resource.k8s.io/v1: name, counters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld:
    """A GPU of which nothing is published, and why. `index` is NVML's."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Why of a published GPU not everything is published. `index` is NVML's."""

    index: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """What is published of an inventory, and what is not.

    `sources` are what the `devices` are made of, in the same order.
    """

    devices: tuple[WireDevice, ...]
    sources: tuple[NodeDevice, ...] = field(default=(), compare=False)
    counter_sets: tuple[WireCounterSet, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    omitted: tuple[Omitted, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Published:
    """A device as it is published, and what it is made of."""

    wire: WireDevice
    source: NodeDevice


@dataclass(slots=True)
class _Offer:
    """What is published of one GPU, as it is gathered."""

    gpu: Gpu
    inventory: Inventory
    mig: MigOffer
    refusal: Refusal | None = None
    in_parts: bool = False
    whole: _Published | None = None
    existing: list[_Published] = field(default_factory=list)
    partitions: list[_Published] = field(default_factory=list)
    counter_set: WireCounterSet | None = None
    omitted: list[Omitted] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.whole or self.existing or self.partitions)


def projection(
    inventory: Inventory,
    *,
    with_counters: bool = True,
    mig: MigOffer = ALL,
    refused: Mapping[GpuUuid, Refusal] = NONE_REFUSED,
) -> Projection:
    """Return the devices to publish, in the order of slices/order.py, and all that was left out.

    Args:
        inventory: what the machine has.
        with_counters: whether the API server stores counters. Where it does not, nothing keeps two
            claims from parts of one GPU that overlap, so what is not there yet is not offered.
        mig: what is offered of MIG on this node.
        refused: the GPUs that cannot be switched to MIG mode at present.
    """
    withheld = [Withheld(index=gpu.index, reason=gpu.reason) for gpu in inventory.sick]
    offers: dict[int, _Offer] = {}
    minors: set[int] = set()
    for gpu in order.by_address(inventory.gpus):
        if gpu.minor in minors:
            reason = (
                f"another GPU has the same minor number {gpu.minor};"
                " is /proc or /dev mounted twice?"
            )
            withheld.append(Withheld(index=gpu.index, reason=reason))
            continue
        offer = _Offer(gpu=gpu, inventory=inventory, mig=mig, refusal=_refusal(gpu, refused))
        _fill(offer, with_counters=with_counters)
        if offer.is_empty:
            reason = "; ".join(offer.notes) or mig.why_none_made() or "nothing of it is offered"
            withheld.append(Withheld(index=gpu.index, reason=reason))
        else:
            minors.add(gpu.minor)
            offers[gpu.minor] = offer
    filled = order.in_fill_order(offer.gpu for offer in offers.values())
    return _arranged({gpu.minor: offers[gpu.minor] for gpu in filled}, withheld)


def _arranged(offers: dict[int, _Offer], withheld: list[Withheld]) -> Projection:
    filled = tuple(offers.values())
    divided = [offer.gpu for offer in filled if offer.partitions]
    whole = order.in_whole_order((offer.gpu for offer in filled if offer.whole), divided)
    published = [one for gpu in whole if (one := offers[gpu.minor].whole) is not None]
    published += [one for offer in filled for one in offer.existing]
    published += [one for offer in filled for one in offer.partitions]
    return Projection(
        devices=tuple(one.wire for one in published),
        sources=tuple(one.source for one in published),
        counter_sets=tuple(offer.counter_set for offer in filled if offer.counter_set is not None),
        withheld=tuple(sorted(withheld, key=lambda entry: entry.index)),
        omitted=tuple(omitted for offer in filled for omitted in offer.omitted),
        notes=tuple(
            Note(index=offer.gpu.index, text=text) for offer in filled for text in offer.notes
        ),
    )


def _fill(offer: _Offer, *, with_counters: bool) -> None:
    if offer.mig.source is not MigSource.OFF:
        _offer_existing(offer)
    if offer.mig.why_none_made() is not None:
        _offer_undivided(offer, None)  # of this node, and not of the GPU
        return
    reason = _why_undivided(offer, with_counters=with_counters)
    if reason is None and offer.gpu.mig is not None:
        _offer_parts(offer)
    else:
        _offer_undivided(offer, reason)


def _why_undivided(offer: _Offer, *, with_counters: bool) -> str | None:
    """Return why no partitions of a GPU are published; None if they are, or it knows no MIG."""
    gpu = offer.gpu
    reason = dividing.why_not_partitioned(gpu)
    if gpu.mig is None or reason is not None:
        return reason
    if not any(map(offer.mig.includes, gpu.mig.profiles)):
        return f"it has none of the profiles of --mig-profiles: {_names(offer.mig.profiles)}"
    if not with_counters:
        return (
            "the API server does not store counters, without which MIG devices cannot be made on"
            " demand; enable the feature gate DRAPartitionableDevices on the API server and the"
            " scheduler, then restart this driver"
        )
    count = len(counters.whole(gpu.mig.profiles))
    if count > counters.MOST_COUNTERS:
        return (
            f"its MIG profiles need {count} counters, and the API allows {counters.MOST_COUNTERS}"
        )
    return None


def _offer_existing(offer: _Offer) -> None:
    """Offer the MIG devices that are there and that this driver did not make."""
    for instance in dividing.found_by_others(offer.gpu):
        if isinstance(instance, MigDevice):
            offer.existing.append(_publish(offer, instance))
            continue
        state = "is divided among several compute instances"
        if not instance.compute_instances:
            state = "has no compute instance"
        offer.notes.append(
            f"GPU instance {instance.gpu_instance} ({instance.profile.name} at"
            f" {instance.placement.start}) {state}, so it is not published: give it one compute"
            " instance of its full size, or destroy it (nvidia-smi mig)"
        )


def _refusal(gpu: Gpu, refused: Mapping[GpuUuid, Refusal]) -> Refusal | None:
    """Return the refusal of a switch that is still to be made."""
    return None if gpu.mig_mode is MigMode.ENABLED else refused.get(gpu.uuid)


def _offer_parts(offer: _Offer) -> None:
    """Offer the whole GPU and its partitions, as far as others left room for them."""
    gpu = offer.gpu
    offer.in_parts = True
    profiles = gpu.mig.profiles if gpu.mig is not None else ()
    everything = counters.whole(profiles)
    others = dividing.found_by_others(gpu)
    left = counters.left_by(others, everything)
    parts = {
        partition: wanted
        for partition in order.in_packing_order(_wished(offer))
        if counters.fits(
            wanted := counters.used(partition.profile, partition.placement, everything), left
        )
    }
    is_offered_whole = dividing.is_whole(gpu) and not others
    # Of all that fits, whatever is withdrawn of it: so what stays is published as it was.
    told = counters.telling([*parts.values(), *([everything] if is_offered_whole else [])], left)
    name = counters.counter_set_name(gpu)

    def consuming(published: _Published, wanted: counters.Counters) -> _Published:
        consumed = counters.of(told, wanted)
        published.wire["consumesCounters"] = counters.consumption(name, consumed)
        return published

    for partition in _not_withdrawn(offer, parts):
        offer.partitions.append(consuming(_publish(offer, partition), parts[partition]))
    if is_offered_whole:
        offer.whole = consuming(_publish(offer, gpu), everything)
    elif dividing.is_whole(gpu):
        offer.notes.append(
            "it is not published as a whole, because there are GPU instances on it that this"
            f" driver did not make: to give it out as a whole, destroy them (nvidia-smi mig -i"
            f" {gpu.pci_address} -dci; nvidia-smi mig -i {gpu.pci_address} -dgi)"
        )
    if offer.partitions or offer.whole:
        offer.counter_set = counters.counter_set(name, counters.of(told, left))


def _wished(offer: _Offer) -> tuple[Partition, ...]:
    """Return the partitions that are offered as far as there is room for them.

    Those that claims have are among them, whatever profiles are wished by now: the scheduler counts
    what a device uses of the GPU only as long as it is published.
    """
    made = {one.slot for one in dividing.made_here(offer.gpu)}
    return tuple(
        one
        for one in dividing.partitions(offer.gpu)
        if offer.mig.includes(one.profile) or one.slot in made
    )


def _not_withdrawn(offer: _Offer, parts: Iterable[Partition]) -> tuple[Partition, ...]:
    """Return the partitions that are published.

    Of a GPU that cannot be switched to MIG mode none, but those that claims have and wait for: the
    scheduler counts what they use of the GPU only as long as they are published.
    """
    if offer.refusal is None:
        return tuple(parts)
    offer.notes.append(f"no MIG devices are offered on it for now: {offer.refusal.reason}")
    return tuple(one for one in parts if one.slot in offer.refusal.waiting)


def _offer_undivided(offer: _Offer, reason: str | None) -> None:
    """Offer a GPU that this driver does not divide, as a whole unless it is divided already."""
    gpu = offer.gpu
    if reason is not None:
        offer.notes.append(f"no MIG devices are made on it: {reason}")
    if gpu.mig is not None and gpu.mig.instances:
        return
    if gpu.mig_mode is not MigMode.ENABLED or (
        offer.mig.source is MigSource.ON_DEMAND and dividing.is_whole(gpu)
    ):
        offer.whole = _publish(offer, gpu)
    elif gpu.mig is None or gpu.mig.problem is None:
        offer.notes.append(
            "MIG mode is on, so it cannot be used as a whole GPU, and it has no MIG device; to"
            f" publish the whole GPU, turn MIG mode off: nvidia-smi -i {gpu.pci_address} -mig 0"
        )


def _names(profiles: Iterable[str]) -> str:
    return ", ".join(sorted(profiles))


def _publish(offer: _Offer, device: Device) -> _Published:
    """Return a device of the offer's GPU as it is published, without its counters."""
    source = NodeDevice(gpu=offer.gpu, device=device)
    attributes = Attributes(device=name_of(offer.gpu, device))
    describe(source, offer.inventory, attributes)
    match device:
        case Gpu():
            omitted = attributes.omitted
            capacity = _gpu_capacity(device, in_parts=offer.in_parts)
        case MigDevice():
            capacity, too_many = _mig_capacity(device, attributes)
            omitted = [*attributes.omitted, *too_many]
        case Partition():
            omitted = [] if offer.partitions else attributes.omitted  # the others lack the same
            capacity = counters.capacity(counters.engines(device.profile))
        case _:
            assert_never(device)
    offer.omitted += omitted
    wire: WireDevice = {"name": attributes.device, "attributes": attributes.values}
    return _Published(wire=wire | ({"capacity": capacity} if capacity else {}), source=source)


def _gpu_capacity(gpu: Gpu, *, in_parts: bool) -> dict[str, object]:
    if in_parts and gpu.mig is not None:
        # Of memory too it is what its largest profile has, slightly less than NVML says of the GPU:
        # so it is with NVIDIA's driver, and so it is what the counters let be consumed.
        return counters.capacity(counters.most_engines(gpu.mig.profiles))
    if gpu.memory_bytes is None:
        return {}
    return {"memory": {"value": str(Quantity.of_bytes(gpu.memory_bytes))}}


def _mig_capacity(
    mig: MigDevice, attributes: Attributes
) -> tuple[dict[str, object], list[Omitted]]:
    """Return the capacity of a MIG device, with its memory slices if there is room for them."""
    capacity = counters.capacity(counters.engines(mig.profile))
    memory_slices = {
        f"memorySlice{number}": {"value": "1"} for number in mig.placement.memory_slices
    }
    if len(attributes.values) + len(capacity) + len(memory_slices) <= MOST_FACTS:
        return capacity | memory_slices, []
    reason = f"the API allows a device {MOST_FACTS} attributes and capacities"
    return capacity, [Omitted(device=attributes.device, attribute="memorySlice…", reason=reason)]
