"""Counts what MIG devices use of their GPU, so that the scheduler never overfills a card.

In: the profiles of a card. Out: numbers by counter name, and the counter sets of a ResourceSlice.
Rules: a device can be allocated while every counter it consumes has enough left (KEP-4815). Names
and values are the same as in NVIDIA's own DRA driver. Each memory slice has a counter, which keeps
placements from overlapping, and so does each engine that could run out. The whole GPU consumes all
counters. If a card allows fewer instances of a profile than these imply, that profile gets its own
counter. The scheduler copies and checks all counters for every pod (kubernetes/kubernetes#138917),
so only those that make a difference are published. Cluster Autoscaler expects identical counter
sets in a pool, so GPUs of one model have identical sets wherever possible. Instances that others
made hardly change a set, because no device that overlaps them is offered: a counter is reduced only
if several offered devices together could take more than is left of it.

The counter `memory` is for quotas. Kueue charges a claim by one counter of the device that it
matches, and admits no claim whose device does not consume that counter (Kueue's KEP-2941). So every
device with a counter set consumes it: the whole GPU all of it, a MIG device the memory of its
profile, a share its part. It never runs out before the counters that keep devices apart.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import assert_never

from dra_driver.devices.device import Base, Device, Mig, Vfio, Whole, profile_of
from dra_driver.devices.model import Gpu, Instance, MigProfile, Placement
from dra_driver.devices.shares import MIB, EqualShare
from resource_nvidia_com.quantity import Quantity

Counters = Mapping[str, int]
"""Amounts by counter name; memory in bytes."""

MOST_COUNTERS = 32
"""How many counters a set may have, and a device may consume (resource.k8s.io/v1)."""

MEMORY = "memory"

SHARES = "shares"
"""The counter of a device that is divided only into shares."""

_MEMORY_SLICE = "memory-slice-"

_ENGINES = (
    "multiprocessors",
    "copy-engines",
    "decoders",
    "encoders",
    "jpeg-engines",
    "ofa-engines",
)
"""The fields of a profile that hold these amounts have the same names, with underscores."""


def counter_set_name(gpu: Gpu) -> str:
    """Return the name of the counter set of a GPU."""
    return f"gpu-{gpu.minor}-counter-set"


def engines(profile: MigProfile) -> dict[str, int]:
    """Return the engines and the memory of an instance of this profile."""
    return {
        **{name: int(getattr(profile, name.replace("-", "_"))) for name in _ENGINES},
        MEMORY: profile.memory_bytes,
    }


def most_engines(profiles: Sequence[MigProfile]) -> dict[str, int]:
    """Return the most that any profile has of each engine and of memory."""
    amounts = [engines(profile) for profile in profiles]
    return {name: max(each[name] for each in amounts) for name in amounts[0]}


def memory(gpu: Gpu) -> int:
    """Return how much memory the counter set of a GPU has, in bytes; 0 if that is not known.

    As in NVIDIA's driver, it is the memory of the largest profile. That is a little less than NVML
    reports for the GPU, and does not depend on MIG mode. Without profiles, NVML's value is used.
    """
    mig = gpu.mig
    if mig is not None and mig.profiles:
        most = max(profile.memory_bytes for profile in mig.profiles)
        return max(most, _most_used(MEMORY, mig.profiles))
    instances = () if mig is None else mig.instances
    return max(gpu.memory_bytes or 0, sum(instance.profile.memory_bytes for instance in instances))


def memory_of(gpu: Gpu, device: Device) -> int:
    """Return how much of its GPU's memory a device consumes, in bytes.

    A share consumes whole MiB, rounded down, so that all shares together fit in their device.
    """
    whole_memory = _memory_of(gpu, device.base)
    if isinstance(device.share, EqualShare):
        return whole_memory // device.share.division.count // MIB * MIB
    return whole_memory


def _memory_of(gpu: Gpu, base: Base) -> int:
    match base:
        case Whole() | Vfio():
            return memory(gpu)
        case Mig():
            return profile_of(gpu, base).memory_bytes
        case _:
            assert_never(base)


def whole(profiles: Sequence[MigProfile]) -> dict[str, int]:
    """Return all counters that keep the devices of a card apart; the whole GPU consumes them.

    An engine needs no counter if instances that do not overlap can never use more than exists.
    """
    there = most_engines(profiles)
    del there[MEMORY]  # instances that do not overlap always fit in memory
    taken = {name: amount for name, amount in there.items() if _most_used(name, profiles) > amount}
    taken |= {_memory_slice(number): 1 for number in range(_memory_slices(profiles))}
    for profile in profiles:
        if profile.instances < _most_by_engines(profile, there):
            taken[_profile(profile)] = profile.instances
    return taken


def used(profile: MigProfile, placement: Placement, all_counters: Counters) -> dict[str, int]:
    """Return what a MIG device consumes of its card's counters."""
    taken = {name: amount for name, amount in engines(profile).items() if name in all_counters}
    taken |= {_memory_slice(number): 1 for number in placement.memory_slices}
    if _profile(profile) in all_counters:
        taken[_profile(profile)] = 1
    return taken


def left_by(instances: Iterable[Instance], all_counters: Counters) -> dict[str, int]:
    """Return what is left of a card's counters beside instances that stay."""
    left = dict(all_counters)
    for instance in instances:
        for name, amount in used(instance.profile, instance.placement, all_counters).items():
            if name in left:
                left[name] = max(0, left[name] - amount)
    return left


def to_publish(
    possible: Sequence[Counters], offered: Sequence[Counters], everything: Counters, left: Counters
) -> dict[str, int]:
    """Return a GPU's counters; `offered` are the `possible` devices that fit in what is `left`."""
    scarce = {name for name in telling(offered, left) if left[name] < everything[name]}
    return {**of(telling(possible, everything), everything), **of(scarce, left)}


def of_others(
    instances: Iterable[Counters], published: Counters, everything: Counters
) -> frozenset[str]:
    """Return the counters of a set that instances made by others consume when claims have them.

    These instances do not consume a counter that was reduced to what they leave. Nor do they
    consume one of which they have more than its total, so that each can be allocated all the same.
    """
    taken: Counter[str] = Counter()
    for instance in instances:
        taken.update(instance)
    return frozenset(
        name
        for name, amount in published.items()
        if amount == everything[name] and taken[name] <= amount
    )


def telling(consumers: Sequence[Counters], left: Counters) -> frozenset[str]:
    """Return the counters that keep some of these consumers apart; no others are published.

    A counter is not needed if nobody consumes it, or if it never runs out before another counter,
    because each consumer takes at least as large a part of the other. Every consumer alone must
    fit in `left`.
    """
    kept = [name for name in left if any(consumer.get(name) for consumer in consumers)]
    for name in reversed(kept.copy()):
        if any(
            all(
                consumer.get(name, 0) * left[other] <= consumer.get(other, 0) * left[name]
                for consumer in consumers
            )
            for other in kept
            if other != name
        ):
            kept.remove(name)
    return frozenset(kept)


def in_shares(amounts: Counters, count: int) -> dict[str, int]:
    """Return the amounts, with each memory slice counted as `count` shares.

    A share takes one from each memory slice, so a share and a MIG device exclude each other.
    """
    return {
        name: amount * count if name.startswith(_MEMORY_SLICE) else amount
        for name, amount in amounts.items()
    }


def of_share(all_counters: Counters) -> dict[str, int]:
    """Return what a share consumes of its card's counters: one from each memory slice."""
    return {name: 1 for name in all_counters if name.startswith(_MEMORY_SLICE)}


def of(names: Container[str], amounts: Counters) -> dict[str, int]:
    """Return the amounts that have one of these names."""
    return {name: amount for name, amount in amounts.items() if name in names}


def fits(wanted: Counters, left: Counters) -> bool:
    """Tell whether a device that consumes `wanted` can be allocated with this much left."""
    return all(left.get(name, 0) >= amount for name, amount in wanted.items())


def shares_of(device: Mig) -> str:
    """Return the name of the counter of a MIG device that is divided into shares."""
    return f"mig-{device.profile_id}-{device.placement.start}-shares"


def counter_set(name: str, counters: Counters) -> dict[str, object]:
    """Return a counter set of a ResourceSlice."""
    return {"name": name, "counters": wire(counters)}


def consumption(name: str, counters: Counters) -> list[dict[str, object]]:
    """Return a device's `consumesCounters`, without zeros: the scheduler reads it for each pod."""
    taken = {counter: amount for counter, amount in counters.items() if amount}
    return [{"counterSet": name, "counters": wire(taken)}]


def capacity(profile_engines: Counters) -> dict[str, object]:
    """Return engines and memory as the capacities of a device, such as `copyEngines`."""
    return {_camel(name): value for name, value in wire(profile_engines).items()}


def wire(counters: Counters) -> dict[str, object]:
    """Return amounts in the API's form: memory as a binary quantity, the rest as numbers."""
    return {
        name: {"value": str(Quantity.of_bytes(amount)) if name == MEMORY else str(amount)}
        for name, amount in counters.items()
    }


def _memory_slice(number: int) -> str:
    return f"{_MEMORY_SLICE}{number}"


def _profile(profile: MigProfile) -> str:
    return f"profile-{profile.id}-instances"


def _camel(name: str) -> str:
    first, *rest = name.split("-")
    return first + "".join(part.capitalize() for part in rest)


def _memory_slices(profiles: Sequence[MigProfile]) -> int:
    return max(place.start + place.size for each in profiles for place in each.placements)


def _most_used(name: str, profiles: Sequence[MigProfile]) -> int:
    """Return the most of an engine that instances can use together if they do not overlap."""
    most = [0]  # index: how many memory slices, from the first, they may be on
    for end in range(1, _memory_slices(profiles) + 1):
        ending = (
            most[place.start] + engines(profile)[name]
            for profile in profiles
            for place in profile.placements
            if place.start + place.size == end
        )
        most.append(max(most[-1], *ending, 0))
    return most[-1]


def _most_by_engines(profile: MigProfile, counters: Counters) -> int:
    """Return how many instances of one profile the engines and disjoint placements allow."""
    wanted, most, free_from = engines(profile), 0, 0
    for placement in sorted(profile.placements, key=lambda place: place.start + place.size):
        if placement.start >= free_from:
            most, free_from = most + 1, placement.start + placement.size
    limits = (amount // need for name, amount in counters.items() if (need := wanted[name]))
    return min(most, *limits)
