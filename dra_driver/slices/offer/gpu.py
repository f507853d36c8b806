"""Decides how one GPU is published: as a whole, in shares, or in MIG devices. Pure.

In: the GPU, and what its node offers of MIG and shares. Out: a filled `GpuOffer` with the devices,
the counters that they consume, and what was left out and why. Rules: devices that share hardware
consume shared counters (KEP-4815). If the API server stores none, only devices that do not overlap
are offered. A device that was made for a claim stays published where MIG devices are made.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from msgspec import Struct, field

from dra_driver.devices.device import (
    Device,
    Mig,
    NodeDevice,
    Whole,
    equal_shares,
    mig_of,
    place_of,
    profile_of,
    whole,
)
from dra_driver.devices.mig import partitions as dividing
from dra_driver.devices.model import Gpu, GpuUuid, Inventory, MigDevice, MigMode, Refusal
from dra_driver.devices.shares import Division, EqualShare
from dra_driver.slices import counters, order
from dra_driver.slices.attributes import Omitted
from dra_driver.slices.consumable import NO_CONSUMABLES, Consumable
from dra_driver.slices.offer.mig import MigOffer, MigSource
from dra_driver.slices.offer.shares import NO_SHARES, ShareOffer
from dra_driver.slices.wire import Published, wire_form


class GpuOffer(Struct):
    """What is published of one GPU, while it is gathered."""

    gpu: Gpu
    inventory: Inventory
    joined: Mapping[GpuUuid, GpuUuid]
    mig: MigOffer
    share: ShareOffer = NO_SHARES
    consumable: Consumable = NO_CONSUMABLES
    refusal: Refusal | None = None
    in_parts: bool = False
    whole: Published | None = None
    shares: list[Published] = field(default_factory=list)
    existing: list[Published] = field(default_factory=list)
    existing_shares: list[list[Published]] = field(default_factory=list)
    partitions: list[Published] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    omitted: list[Omitted] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether nothing of the GPU is published."""
        return not any(True for _ in self.published())

    def published(self) -> Iterator[Published]:
        """All devices of the GPU that are published, in no particular order."""
        if self.whole is not None:
            yield self.whole
        yield from chain(self.shares, self.existing, *self.existing_shares, self.partitions)

    @property
    def has_shares(self) -> bool:
        """Whether several claims may share the GPU; not while others have it in MIG mode."""
        return not self.gpu.was_put_in_mig_mode

    @property
    def division(self) -> Division | None:
        """How the GPU is divided into shares; None if it is not, or may not be."""
        return self.share.divisions.get(Whole(gpu=self.gpu.uuid)) if self.has_shares else None


def fill(offer: GpuOffer, *, with_counters: bool) -> None:
    """Gather what is published of a GPU, and which counters each device consumes."""
    _gather(offer, with_counters=with_counters)
    if offer.counters:
        _count_memory(offer)


def _gather(offer: GpuOffer, *, with_counters: bool) -> None:
    gpu, mig = offer.gpu, offer.mig
    beside_shares = with_counters and offer.share.alone is None
    if mig.source is not MigSource.OFF:
        _offer_existing(offer, with_counters=beside_shares)
    division = offer.division
    if division is not None and not beside_shares:
        _offer_shares_alone(offer, division)
        return
    if not mig.divides(gpu):
        # A reason is given only in AUTO: otherwise the node's settings say that none are made.
        _offer_undivided(offer, _why_mode_waits(gpu) if mig.source is MigSource.AUTO else None)
        return
    reason = _why_undivided(offer, with_counters=with_counters)
    if reason is None and offer.gpu.mig is not None:
        _offer_parts(offer)
    else:
        _offer_undivided(offer, reason)


def _why_mode_waits(gpu: Gpu) -> str | None:
    """Return why a MIG mode that somebody turned on is not in force; None if nobody did."""
    if gpu.mig_mode is MigMode.ENABLED or not dividing.awaits_mode(gpu):
        return None
    return dividing.why_not_partitioned(gpu) or (
        "MIG mode could not be turned on while others have the GPU open; end these, and turn it "
        f"on again (nvidia-smi -i {gpu.pci_address} -mig 1)"
    )


def _why_undivided(offer: GpuOffer, *, with_counters: bool) -> str | None:
    """Return why a GPU's partitions are not published; None if they are, or it has no MIG."""
    gpu = offer.gpu
    reason = dividing.why_not_partitioned(gpu)
    if gpu.mig is None or reason is not None:
        return reason
    if not any(map(offer.mig.includes, gpu.mig.profiles)):
        names = ", ".join(sorted(offer.mig.profiles))
        return f"it has none of the profiles of --mig-profiles: {names}"
    if not with_counters:
        return (
            "the API server does not store counters, without which MIG devices cannot be made on"
            " demand; enable the feature gate DRAPartitionableDevices on the API server and the"
            " scheduler, then restart this driver"
        )
    count = len(counters.whole(gpu.mig.profiles)) + len(offer.existing_shares) + 1  # memory
    if count > counters.MOST_COUNTERS:
        return (
            f"its MIG profiles need {count} counters, and the API allows {counters.MOST_COUNTERS}"
        )
    return None


def _offer_existing(offer: GpuOffer, *, with_counters: bool) -> None:
    """Offer the existing MIG devices that this driver did not make."""
    for instance in dividing.found_by_others(offer.gpu):
        if isinstance(instance, MigDevice):
            _offer_mig_device(offer, mig_of(instance), with_counters=with_counters)
            continue
        state = "is divided among several compute instances"
        if not instance.compute_instances:
            state = "has no compute instance"
        offer.notes.append(
            f"GPU instance {instance.gpu_instance} ({instance.profile.name} at"
            f" {instance.placement.start}) {state}, so it is not published: give it one compute"
            " instance of its full size, or destroy it (nvidia-smi mig)"
        )


def _offer_mig_device(offer: GpuOffer, mig: Mig, *, with_counters: bool) -> None:
    """Offer a MIG device that others made, as a whole and in its shares."""
    device, place = Device(base=mig), place_of(mig)
    if reason := offer.share.refused.get(place):
        offer.notes.append(f"MIG device {device.uuid} is not published: {reason}")
        return
    division = offer.share.divisions.get(place)
    if division is None:
        offer.existing.append(_publish(offer, device, serves=offer.share.serving.get(place)))
        return
    counter = counters.shares_of(mig)
    taken = {counter: 1} if with_counters else {}
    offer.existing_shares.append(
        [_publish(offer, share).consume(taken) for share in equal_shares(mig, division)]
    )
    if with_counters:
        offer.counters[counter] = division.count
        all_of_it = _publish(offer, device, division)
        offer.existing.append(all_of_it.consume({counter: division.count}))


def _offer_shares(offer: GpuOffer, division: Division, wanted: counters.Counters) -> None:
    """Offer the shares of a GPU, each of which consumes `wanted`."""
    base = Whole(gpu=offer.gpu.uuid)
    offer.shares = [
        _publish(offer, share).consume(wanted) for share in equal_shares(base, division)
    ]


def _offer_shares_alone(offer: GpuOffer, division: Division) -> None:
    """Offer only the shares of a GPU, which need no counters to keep them apart."""
    _offer_shares(offer, division, {})
    reason = offer.share.alone or (
        "the API server does not store counters, without which nothing keeps a claim for the"
        " whole GPU from its shares (feature gate DRAPartitionableDevices)"
    )
    offer.notes.append(f"it is published in shares only: {reason}")


def _count_memory(offer: GpuOffer) -> None:
    """Let every device of a GPU consume its memory from the counter set, for quotas."""
    if memory := counters.memory(offer.gpu):
        offer.counters[counters.MEMORY] = memory
        for device in offer.published():
            device.consume({counters.MEMORY: counters.memory_of(offer.gpu, device.source.device)})


def _offer_parts(offer: GpuOffer) -> None:
    """Offer the whole GPU and its partitions, as far as others' instances leave room for them."""
    gpu, division = offer.gpu, offer.division
    offer.in_parts = True
    profiles = gpu.mig.profiles if gpu.mig is not None else ()
    everything = counters.whole(profiles)
    others = dividing.found_by_others(gpu)
    possible = {
        place: counters.used(profile_of(gpu, place), place.placement, everything)
        for place in order.in_packing_order(gpu, _wished(offer))
    }
    can_be_whole = offer.mig.switches_modes and dividing.is_whole(gpu)
    is_offered_whole = can_be_whole and not others
    share: dict[str, int] = {}
    if division is not None and is_offered_whole:
        possible = {at: counters.in_shares(each, division.count) for at, each in possible.items()}
        everything = counters.in_shares(everything, division.count)
        share = counters.of_share(everything)
    left = counters.left_by(others, everything)
    parts = {at: wanted for at, wanted in possible.items() if counters.fits(wanted, left)}
    # Computed for all that fits, so that withdrawing some does not change the rest.
    wholes = [everything, share] if share else [everything]
    told = counters.to_publish([*possible.values(), *wholes], [*parts.values()], everything, left)
    for place in _not_withdrawn(offer, parts):
        consumed = counters.of(told, parts[place])
        offer.partitions.append(_publish(offer, Device(base=place)).consume(consumed))
    if division is not None and share:
        _offer_shares(offer, division, counters.of(told, share))
    if is_offered_whole:
        all_of_it = _publish(offer, whole(gpu), division)
        offer.whole = all_of_it.consume(counters.of(told, everything))
    elif can_be_whole:
        offer.notes.append(
            "it is not published as a whole, because there are GPU instances on it that this"
            f" driver did not make: to give it out as a whole, destroy them (nvidia-smi mig -i"
            f" {gpu.pci_address} -dci; nvidia-smi mig -i {gpu.pci_address} -dgi)"
        )
    if offer.partitions or offer.whole:
        offer.counters |= told
        _count_existing(offer, told, everything)


def _count_existing(
    offer: GpuOffer, told: counters.Counters, everything: counters.Counters
) -> None:
    """Let MIG devices that others made consume the same as partitions in their places."""
    others = dividing.found_by_others(offer.gpu)
    used = [counters.used(other.profile, other.placement, everything) for other in others]
    names = counters.of_others(used, told, everything)
    for published in offer.existing:
        device = published.source.device
        if isinstance(device.base, Mig) and device.share is None:
            profile = profile_of(offer.gpu, device.base)
            taken = counters.used(profile, device.base.placement, everything)
            published.consume(counters.of(names, taken))


def _wished(offer: GpuOffer) -> tuple[Mig, ...]:
    """Return the partitions that are offered if there is room for them.

    They include those that were made for claims, even if their profile is no longer wanted, because
    the scheduler counts what a device uses of the GPU only as long as it is published.
    """
    made = {instance.slot for instance in dividing.made_here(offer.gpu)}
    return tuple(
        partition
        for partition in dividing.partitions(offer.gpu)
        if offer.mig.includes(profile_of(offer.gpu, partition)) or partition.slot in made
    )


def _not_withdrawn(offer: GpuOffer, parts: Iterable[Mig]) -> tuple[Mig, ...]:
    """Return the partitions to publish; during a refusal, only those that claims wait for.

    The scheduler counts what these use of the GPU only as long as they are published.
    """
    if offer.refusal is None:
        return tuple(parts)
    offer.notes.append(f"no MIG devices are offered on it for now: {offer.refusal.reason}")
    return tuple(part for part in parts if part.slot in offer.refusal.waiting)


def _offer_undivided(offer: GpuOffer, reason: str | None) -> None:
    """Offer the whole GPU if this driver does not divide it, unless it is divided already."""
    gpu = offer.gpu
    if reason is not None:
        offer.notes.append(f"no MIG devices are made on it: {reason}")
    is_on = gpu.mig_mode is MigMode.ENABLED
    can_be_whole = offer.mig.switches_modes and dividing.is_whole(gpu)
    if is_on and not gpu.was_put_in_mig_mode and not can_be_whole:
        offer.notes.append(
            "this driver turned its MIG mode on for claims, and turns it off after the last"
        )
    elif gpu.mig_instances:
        return
    elif not is_on or can_be_whole:
        division = offer.division
        offer.whole = _publish(offer, whole(gpu), division)
        if division is not None:
            offer.whole.consume({counters.SHARES: division.count})
            _offer_shares(offer, division, {counters.SHARES: 1})
            offer.counters[counters.SHARES] = division.count
    elif gpu.mig is None or gpu.mig.problem is None:
        offer.notes.append(
            "MIG mode is on, so it cannot be used as a whole GPU, and it has no MIG device: make"
            f" some (nvidia-smi mig -i {gpu.pci_address} -cgi PROFILES -C, or mig-parted), or turn"
            f" MIG mode off for a whole GPU (nvidia-smi -i {gpu.pci_address} -mig 0)"
            + (f", {offer.mig.way_out}" if offer.mig.way_out else "")
        )


def _publish(
    offer: GpuOffer,
    device: Device,
    division: Division | None = None,
    *,
    serves: str | None = None,
) -> Published:
    is_in_one_piece = division is not None or (device == whole(offer.gpu) and not offer.has_shares)
    unserved = offer.share.unserved.get(device.base) if device.share is None else None
    form, omitted = wire_form(
        NodeDevice(gpu=offer.gpu, device=device),
        offer.inventory,
        joined=offer.joined,
        in_parts=offer.in_parts,
        consumable_by=NO_CONSUMABLES if is_in_one_piece else offer.consumable,
        shared_as=unserved if division is None else division.served_as,
        serves=serves,
    )
    others = _index(device) if device.exists else offer.partitions
    if not others:
        offer.omitted += omitted  # its other devices lack the same attributes
    return form


def _index(device: Device) -> int:
    """Return the index of a share among the shares of its device; 0 for other devices."""
    return device.share.index if isinstance(device.share, EqualShare) else 0
