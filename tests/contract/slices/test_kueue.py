"""Kueue's quotas by memory: what claims are charged for that match what this driver publishes."""

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace
from testbed.manifests import installed

import make
from dra_driver.devices.model import Inventory, MigMode
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.simulator.nodes import inventory_of
from dra_driver.slices.offer.mig import MigOffer, MigSource
from dra_driver.slices.offer.shares import NO_SHARES, ShareOffer
from dra_driver.slices.pool import build_slices
from dra_driver.slices.project import Projection, projection
from kueue import InadmissibleError, Request, Source, charge, counter_total
from sampling import EVERYTHING

MIB = 1024**2
EACH = ["a100x8", "a100-80x8", "a30x4", "h100x8", "h200x8", "b200x8", "rtxpro6000x8"]
CARDS = EACH if EVERYTHING else EACH[::3]
WITHOUT_MIG = ["t4x4", "l4x2", "v100-16x8"]
MEMORY = Source()
ON_DEMAND = MigOffer(source=MigSource.ON_DEMAND)
WHOLE_ALONE = MigOffer(source=MigSource.EXISTING)


def selector_of(device_class: str) -> str:
    """The selector of a DeviceClass that comes with the driver."""
    for one in installed("DeviceClass"):
        if one["metadata"]["name"] == device_class:
            (selector,) = one["spec"]["selectors"]
            return str(selector["cel"]["expression"])
    raise AssertionError(device_class)


WHOLE = Request(selectors=[selector_of("gpu.nvidia.com")])
SHARE = Request(selectors=[selector_of("gpu.resource.nvidia.com")])
ANY_MIG = Request(selectors=[selector_of("mig.nvidia.com")])


def of_profile(profile: str, count: int = 1) -> Request:
    own = f"device.attributes['gpu.nvidia.com'].profile == '{profile}'"
    return Request(selectors=[*ANY_MIG.selectors, own], count=count)


@cache
def machine(profile: str) -> Inventory:
    """What the driver finds on a machine; GPUs that need a reset for MIG mode had it."""
    found = inventory_of(profile)
    return replace(
        found,
        gpus=tuple(
            replace(gpu, mig_mode=MigMode.ENABLED)
            if gpu.mig is not None and gpu.mig.needs_reset
            else gpu
            for gpu in found.gpus
        ),
    )


def published(
    inventory: Inventory,
    offer: MigOffer = ON_DEMAND,
    share: ShareOffer = NO_SHARES,
    *,
    memory_counters: bool = False,
) -> list[Mapping[str, Any]]:
    """The slices of a node."""
    return slices_of(projection(inventory, mig=offer, share=share, memory_counters=memory_counters))


def slices_of(found: Projection) -> list[Mapping[str, Any]]:
    """What is published as slices."""
    pool = build_slices(
        found.devices, driver="gpu.nvidia.com", node_name="n", counter_sets=found.counter_sets
    )
    return [{"spec": pool.spec(index, generation=1)} for index in range(len(pool.contents))]


def divided(inventory: Inventory, count: int) -> ShareOffer:
    division = Division(
        count=count, strategy=ShareStrategy.TIME_SLICING, served_as="nvidia.com/gpu", combines=True
    )
    return ShareOffer(divisions={make.place(gpu): division for gpu in inventory.gpus})


def profiles_of(inventory: Inventory) -> dict[str, int]:
    """The memory of each profile of a card."""
    mig = inventory.gpus[0].mig
    assert mig is not None
    return {profile.name: profile.memory_bytes for profile in mig.profiles}


def test_an_h100_and_its_parts_are_charged_as_with_nvidias_driver() -> None:
    slices = published(machine("h100x8"))
    asked = {"1g.10gb": 9984, "2g.20gb": 20096, "3g.40gb": 40448, "7g.80gb": 81152}

    charged = {name: charge(slices, of_profile(name), MEMORY) // MIB for name in asked}
    assert charged == asked
    assert charge(slices, WHOLE, MEMORY) == 81152 * MIB
    assert charge(slices, dataclasses.replace(WHOLE, count=4), MEMORY) == 4 * 81152 * MIB
    assert counter_total(slices, "memory") == 8 * 81152 * MIB


@pytest.mark.parametrize("card", CARDS)
def test_each_profile_of_each_card_is_charged_its_memory(card: str) -> None:
    inventory = machine(card)
    slices = published(inventory)
    profiles = profiles_of(inventory)

    for name, memory in profiles.items():
        assert charge(slices, of_profile(name), MEMORY) == memory
        assert charge(slices, of_profile(name, count=2), MEMORY) == 2 * memory
    # Who says no profile might get the largest, and is charged for that.
    assert charge(slices, ANY_MIG, MEMORY) == max(profiles.values())
    assert counter_total(slices, "memory") == len(inventory.gpus) * max(profiles.values())


@pytest.mark.parametrize("card", [*CARDS, *WITHOUT_MIG])
def test_a_share_is_charged_its_part_and_all_of_them_no_more_than_the_gpu(card: str) -> None:
    inventory = inventory_of(card)
    slices = published(inventory, share=divided(inventory, 10))
    whole, share = charge(slices, WHOLE, MEMORY), charge(slices, SHARE, MEMORY)

    assert counter_total(slices, "memory") == len(inventory.gpus) * whole
    assert whole - 10 * MIB < 10 * share <= whole
    assert charge(slices, dataclasses.replace(SHARE, count=3), MEMORY) == 3 * share


@pytest.mark.parametrize("card", [*CARDS, *WITHOUT_MIG])
def test_whole_gpus_alone_are_charged_nothing_unless_memory_is_counted_everywhere(
    card: str,
) -> None:
    inventory = inventory_of(card)
    with pytest.raises(InadmissibleError, match="no consumesCounters entry for counter memory"):
        charge(published(inventory, WHOLE_ALONE), WHOLE, MEMORY)

    slices = published(inventory, WHOLE_ALONE, memory_counters=True)
    gpu = inventory.gpus[0]
    largest = max(profiles_of(inventory).values()) if gpu.mig is not None else gpu.memory_bytes
    assert charge(slices, WHOLE, MEMORY) == largest
    assert counter_total(slices, "memory") == len(inventory.gpus) * (largest or 0)
