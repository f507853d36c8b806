"""Decides how one GPU is published: as a whole, in shares, or in MIG devices. Pure.

In: the GPU, and what its node offers of MIG and shares. Out: a `GpuOffer` with the devices, the
counters that they consume, and what was left out and why. Rules: devices that share hardware
consume shared counters (KEP-4815). If the API server stores none, only devices that do not overlap
are offered. A device that was made for a claim stays published where MIG devices are made.
"""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from dra_driver.devices.device import (
    Base,
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
from dra_driver.devices.shares import Division
from dra_driver.slices import counters, order
from dra_driver.slices.consumable import NO_CONSUMABLES, Consumable
from dra_driver.slices.offer.mig import MigOffer, MigSource
from dra_driver.slices.offer.shares import ShareOffer
from dra_driver.slices.wire import Published, wire_form


class GpuBasis(Struct, frozen=True, kw_only=True):
    """A GPU, and what decides how it is published.

    Attributes:
        joined: the NVLink island of each GPU that is in one.
        refusal: why the GPU takes no MIG mode, or no MIG devices, at present.
        with_counters: whether the API server stores counters.
        memory_counters: whether a GPU without other counters has one of its memory, too.
    """

    gpu: Gpu
    inventory: Inventory
    joined: Mapping[GpuUuid, GpuUuid]
    mig: MigOffer
    share: ShareOffer
    consumable: Consumable
    refusal: Refusal | None
    with_counters: bool
    memory_counters: bool

    @property
    def division(self) -> Division | None:
        """How the GPU is divided into shares; None if it is not, or others divide it by MIG."""
        if self.gpu.was_put_in_mig_mode or dividing.found_by_others(self.gpu):
            return None
        return self.share.divisions.get(Whole(gpu=self.gpu.uuid))

    @property
    def is_whole_beside_shares(self) -> bool:
        """Whether a divided device is also offered as a whole, with counters between the two."""
        return self.with_counters and self.share.alone is None


class GpuOffer(Struct, frozen=True, kw_only=True):
    """What is published of one GPU, in no particular order, and for people, what is not and why."""

    gpu: Gpu
    devices: tuple[Published, ...]
    counters: dict[str, int]
    notes: tuple[str, ...]

    def of(
        self, base: type[Whole | Mig], *, is_share: bool = False, exists: bool = True
    ) -> list[Published]:
        """Return the devices of one kind: whole ones or shares, of what exists or is to be made."""
        return [
            each
            for each in self.devices
            if isinstance(each.source.device.base, base)
            and (each.source.device.share is not None) is is_share
            and each.source.device.exists is exists
        ]


_Found = Iterator[Published | str]
"""Devices to publish, and notes for people on what is not published."""


def offer_of(basis: GpuBasis) -> GpuOffer:
    """Return what is published of a GPU, with the counters that each device consumes."""
    gpu, mig, division = basis.gpu, basis.mig, basis.division
    found = list(_existing(basis)) if mig.source is not MigSource.OFF else []
    there = _divided(found)
    if division is not None and not basis.is_whole_beside_shares:
        found += _shares_alone(basis, division)
    else:
        reason = _why_undivided(basis, there)
        if reason is None and gpu.mig is not None and mig.divides(gpu):
            parts, told = _in_parts(basis)
            if parts:
                found = [*_with_counters(found, gpu, told), *parts]
                there |= told
            found += _why_not_all(basis)
        else:
            found += _undivided(basis, reason)
            there |= _divided(found)
    devices = tuple(each for each in found if isinstance(each, Published))
    memory = counters.memory(gpu) if there or basis.memory_counters else 0
    if memory:  # every device of a counter set consumes its memory, for quotas
        there[counters.MEMORY] = memory
        devices = tuple(
            each.consume({counters.MEMORY: counters.memory_of(gpu, each.source.device)})
            for each in devices
        )
    notes = tuple(each for each in found if isinstance(each, str))
    return GpuOffer(gpu=gpu, devices=devices, counters=there, notes=notes)


def _divided(found: Iterable[Published | str]) -> dict[str, int]:
    """Return the counters of divided devices: each is consumed in full by the device as a whole."""
    return {
        name: amount
        for each in found
        if isinstance(each, Published) and each.source.device.share is None
        for name, amount in each.consumed.items()
    }


def _why_mode_waits(gpu: Gpu) -> str | None:
    """Return why a MIG mode that somebody turned on is not in force; None if nobody did."""
    if gpu.mig_mode is MigMode.ENABLED or not dividing.awaits_mode(gpu):
        return None
    return dividing.why_not_partitioned(gpu) or (
        "MIG mode could not be turned on while others have the GPU open; end these, and turn it "
        f"on again (nvidia-smi -i {gpu.pci_address} -mig 1)"
    )


def _why_undivided(basis: GpuBasis, divided: counters.Counters) -> str | None:
    """Return why a GPU's partitions are not published; None if they are, or it needs no reason.

    `divided` are the counters of existing MIG devices that are divided into shares.
    """
    gpu, mig = basis.gpu, basis.mig
    if not mig.divides(gpu):  # if the node's settings say that none are made, that is told once
        return _why_mode_waits(gpu) if mig.source is MigSource.AUTO else None
    reason = dividing.why_not_partitioned(gpu)
    if gpu.mig is None or reason is not None:
        return reason
    if not any(map(mig.includes, gpu.mig.profiles)):
        names = ", ".join(sorted(mig.profiles))
        return f"it has none of the profiles of --mig-profiles: {names}"
    if not basis.with_counters:
        return (
            "the API server does not store counters, without which MIG devices cannot be made on"
            " demand; enable the feature gate DRAPartitionableDevices on the API server and the"
            " scheduler, then restart this driver"
        )
    count = len(counters.whole(gpu.mig.profiles)) + len(divided) + 1  # memory
    if count > counters.MOST_COUNTERS:
        return (
            f"its MIG profiles need {count} counters, and the API allows {counters.MOST_COUNTERS}"
        )
    return None


def _existing(basis: GpuBasis) -> _Found:
    """Offer the existing MIG devices that this driver did not make."""
    for instance in dividing.found_by_others(basis.gpu):
        if isinstance(instance, MigDevice):
            yield from _mig_device(basis, mig_of(instance))
            continue
        state = "is divided among several compute instances"
        if not instance.compute_instances:
            state = "has no compute instance"
        yield (
            f"GPU instance {instance.gpu_instance} ({instance.profile.name} at"
            f" {instance.placement.start}) {state}, so it is not published: give it one compute"
            " instance of its full size, or destroy it (nvidia-smi mig)"
        )


def _mig_device(basis: GpuBasis, mig: Mig) -> _Found:
    """Offer a MIG device that others made, as a whole and in its shares."""
    device, place, share = Device(base=mig), place_of(mig), basis.share
    division = share.divisions.get(place)
    if reason := share.refused.get(place):
        yield f"MIG device {device.uuid} is not published: {reason}"
    elif division is None:
        yield _publish(basis, device, serves=share.serving.get(place))
    elif basis.is_whole_beside_shares:
        yield from _in_shares(basis, device, division, counters.shares_of(mig))
    else:
        yield from _shares(basis, mig, division, {})


def _shares(
    basis: GpuBasis, base: Base, division: Division, wanted: counters.Counters
) -> Iterator[Published]:
    """Yield the shares of a device, each of which consumes `wanted`."""
    for share in equal_shares(base, division):
        yield _publish(basis, share).consume(wanted)


def _in_shares(basis: GpuBasis, device: Device, division: Division, counter: str) -> _Found:
    """Offer a device as a whole and in its shares, which a counter keeps apart."""
    yield _publish(basis, device, division).consume({counter: division.count})
    yield from _shares(basis, device.base, division, {counter: 1})


def _shares_alone(basis: GpuBasis, division: Division) -> _Found:
    """Offer only the shares of a GPU, which need no counters to keep them apart."""
    yield from _shares(basis, Whole(gpu=basis.gpu.uuid), division, {})
    reason = basis.share.alone or (
        "the API server does not store counters, without which nothing keeps a claim for the"
        " whole GPU from its shares (feature gate DRAPartitionableDevices)"
    )
    yield f"it is published in shares only: {reason}"


def _in_parts(basis: GpuBasis) -> tuple[list[Published], dict[str, int]]:
    """Return the whole GPU and its partitions, if others leave room, with all counters."""
    gpu, division = basis.gpu, basis.division
    everything = counters.whole(gpu.mig.profiles if gpu.mig is not None else ())
    others = dividing.found_by_others(gpu)
    possible = {
        place: counters.used(profile_of(gpu, place), place.placement, everything)
        for place in order.in_packing_order(gpu, _wished(basis))
    }
    is_offered_whole = _can_be_whole(basis) and not others
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
    # During a refusal only those that claims wait for: the scheduler counts what these use of the
    # GPU only as long as they are published.
    refusal = basis.refusal
    devices = [
        _publish(basis, Device(base=place)).consume(counters.of(told, wanted))
        for place, wanted in parts.items()
        if refusal is None or place.slot in refusal.waiting
    ]
    if division is not None and share:
        devices += _shares(basis, Whole(gpu=gpu.uuid), division, counters.of(told, share))
    if is_offered_whole:
        all_of_it = _publish(basis, whole(gpu), division, in_parts=True)
        devices.append(all_of_it.consume(counters.of(told, everything)))
    return devices, told


def _why_not_all(basis: GpuBasis) -> _Found:
    """Yield why partitions are withdrawn, and why a GPU is not offered as a whole beside them."""
    if basis.refusal is not None:
        yield f"no MIG devices are offered on it for now: {basis.refusal.reason}"
    if _can_be_whole(basis) and dividing.found_by_others(basis.gpu):
        address = basis.gpu.pci_address
        yield (
            "it is not published as a whole, because there are GPU instances on it that this"
            f" driver did not make: to give it out as a whole, destroy them (nvidia-smi mig -i"
            f" {address} -dci; nvidia-smi mig -i {address} -dgi)"
        )


def _can_be_whole(basis: GpuBasis) -> bool:
    return basis.mig.switches_modes and dividing.is_whole(basis.gpu)


def _with_counters(found: Iterable[Published | str], gpu: Gpu, told: counters.Counters) -> _Found:
    """Let MIG devices that others made consume the same as partitions in their places."""
    everything = counters.whole(gpu.mig.profiles if gpu.mig is not None else ())
    others = dividing.found_by_others(gpu)
    used = [counters.used(other.profile, other.placement, everything) for other in others]
    names = counters.of_others(used, told, everything)
    for each in found:
        base = None if isinstance(each, str) else each.source.device.base
        if isinstance(each, str) or not isinstance(base, Mig) or each.source.device.share:
            yield each
        else:
            taken = counters.used(profile_of(gpu, base), base.placement, everything)
            yield each.consume(counters.of(names, taken))


def _wished(basis: GpuBasis) -> tuple[Mig, ...]:
    """Return the partitions that are offered if there is room for them.

    They include those that were made for claims, even if their profile is no longer wanted, because
    the scheduler counts what a device uses of the GPU only as long as it is published.
    """
    made = {instance.slot for instance in dividing.made_here(basis.gpu)}
    return tuple(
        partition
        for partition in dividing.partitions(basis.gpu)
        if basis.mig.includes(profile_of(basis.gpu, partition)) or partition.slot in made
    )


def _undivided(basis: GpuBasis, reason: str | None) -> _Found:
    """Offer the whole GPU if this driver does not divide it, unless it is divided already."""
    gpu, division = basis.gpu, basis.division
    if reason is not None:
        yield f"no MIG devices are made on it: {reason}"
    is_on = gpu.mig_mode is MigMode.ENABLED
    if is_on and not gpu.was_put_in_mig_mode and not _can_be_whole(basis):
        yield "this driver turned its MIG mode on for claims, and turns it off after the last"
    elif gpu.mig_instances:
        return
    elif is_on and not _can_be_whole(basis):
        if gpu.mig is None or gpu.mig.problem is None:
            yield (
                "MIG mode is on, so it cannot be used as a whole GPU, and it has no MIG device:"
                f" make some (nvidia-smi mig -i {gpu.pci_address} -cgi PROFILES -C, or mig-parted),"
                f" or turn MIG mode off for a whole GPU (nvidia-smi -i {gpu.pci_address} -mig 0)"
                + (f", {basis.mig.way_out}" if basis.mig.way_out else "")
            )
    elif division is None:
        yield _publish(basis, whole(gpu))
    else:
        yield from _in_shares(basis, whole(gpu), division, counters.SHARES)


def _publish(
    basis: GpuBasis,
    device: Device,
    division: Division | None = None,
    *,
    serves: str | None = None,
    in_parts: bool = False,
) -> Published:
    gpu = basis.gpu
    # Several claims cannot consume parts of a GPU that others have in MIG mode.
    is_for_one = division is not None or (device == whole(gpu) and gpu.was_put_in_mig_mode)
    unserved = basis.share.unserved.get(device.base) if device.share is None else None
    return wire_form(
        NodeDevice(gpu=gpu, device=device),
        basis.inventory,
        joined=basis.joined,
        in_parts=in_parts,
        consumable_by=NO_CONSUMABLES if is_for_one else basis.consumable,
        shared_as=unserved if division is None else division.served_as,
        serves=serves,
    )
