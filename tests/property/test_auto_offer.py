"""What is offered of any machine without `--mig on-demand`: nothing twice, few counters."""

from collections import Counter
from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dra_driver.devices.device import Device, Mig, Whole
from dra_driver.devices.model import Gpu, Inventory, MigMode, Placement
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.slices.offer.mig import MigOffer, MigSource
from dra_driver.slices.offer.shares import ShareOffer
from dra_driver.slices.project import Projection, projection
from property.test_slices import inventories
from resource_nvidia_com.quantity import Quantity

HALVES = Division(
    count=2, strategy=ShareStrategy.TIME_SLICING, served_as="nvidia.com/gpu", combines=True
)


def _as_can_be(draw: st.DrawFn, gpu: Gpu) -> Gpu:
    """The GPU in MIG mode, by this driver or others, if there are instances on it."""
    if gpu.mig is None or not gpu.mig.instances:
        return gpu
    mig = replace(gpu.mig, turned_on_here=draw(st.booleans()))
    return replace(gpu, mig_mode=MigMode.ENABLED, mig=mig)


@st.composite
def offers(draw: st.DrawFn) -> tuple[Inventory, Projection]:
    """Any machine with any of it divided, and what is published of it."""
    machine = draw(inventories)
    gpus = {gpu.uuid: _as_can_be(draw, gpu) for gpu in machine.gpus}
    inventory = replace(machine, gpus=tuple(gpus.values()))
    parts = [Whole(gpu=gpu.uuid) for gpu in inventory.gpus if draw(st.booleans())]
    share = ShareOffer(
        divisions=dict.fromkeys(parts, HALVES), alone=draw(st.none() | st.just("it is set so"))
    )
    source = draw(st.sampled_from([MigSource.AUTO, MigSource.EXISTING, MigSource.OFF]))
    mig = MigOffer(source=source)
    with_counters = draw(st.booleans())
    return inventory, projection(inventory, mig=mig, share=share, with_counters=with_counters)


def place(device: Device) -> Placement | None:
    """What of its GPU a device is; None for all of it."""
    return device.base.placement if isinstance(device.base, Mig) else None


def exclude(one: Device, other: Device) -> bool:
    """Whether two claims cannot have these devices of one GPU."""
    mine, theirs = place(one), place(other)
    if one.share and other.share and mine == theirs:
        return one.share.label == other.share.label
    return mine is None or theirs is None or mine.overlaps(theirs)


def amounts(counters: dict[str, Any]) -> Counter[str]:
    return Counter({name: Quantity.parse(one["value"]).whole for name, one in counters.items()})


def consumed(device: Any) -> Counter[str]:
    (taken,) = device.get("consumesCounters") or [{"counters": {}}]
    return amounts(taken["counters"])


@given(offers())
def test_no_two_devices_that_overlap_can_both_be_allocated_and_whole_gpus_have_no_partitions(
    offer: tuple[Inventory, Projection],
) -> None:
    inventory, found = offer
    names = [str(device["name"]) for device in found.devices]
    assert len(names) == len(set(names))
    left = {str(one["name"]): amounts(one["counters"]) for one in found.counter_sets}  # type: ignore[arg-type]
    published = [
        (source, consumed(device))
        for device, source in zip(found.devices, found.sources, strict=True)
    ]
    for minor in {gpu.minor for gpu in inventory.gpus}:
        there = left.get(f"gpu-{minor}-counter-set", Counter())
        mine = [(one.device, taken) for one, taken in published if one.gpu.minor == minor]
        for (one, taken), (other, needed) in combinations(mine, 2):
            if exclude(one, other):
                assert any(taken[name] + needed[name] > there[name] for name in taken)
        for device, taken in mine:
            if isinstance(device.base, Whole) and device.share is None:  # no partitions beside it
                assert set(taken) <= {"memory", "shares"}
