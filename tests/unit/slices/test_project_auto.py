"""What is published with `--mig auto`: a GPU's MIG mode is its admin's word."""

from typing import Any

import pytest

import make
from dra_driver.devices.model import BareInstance, Gpu, MigDevice, MigMode
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.slices.offer.mig import MigOffer, MigSource
from dra_driver.slices.offer.shares import ShareOffer
from dra_driver.slices.project import Projection, projection

PARTITIONS = 25
"""MIG devices that could be made on an empty H100."""


def h100(minor: int = 0, *instances: MigDevice | BareInstance, on: bool = False, **mig: Any) -> Gpu:
    mode = MigMode.ENABLED if on else MigMode.DISABLED
    return make.gpu(minor, mig_mode=mode, mig=make.mig(*instances, pending_mode=mode, **mig))


def auto(
    *gpus: Gpu,
    share: ShareOffer | None = None,
    with_counters: bool = True,
    source: MigSource = MigSource.AUTO,
) -> Projection:
    offer = MigOffer(source=source, why="so it was set")
    return projection(
        make.inventory(*gpus), mig=offer, share=share or ShareOffer(), with_counters=with_counters
    )


def names(found: Projection) -> list[str]:
    return [str(device["name"]) for device in found.devices]


def consuming(found: Projection) -> list[str]:
    return [str(device["name"]) for device in found.devices if "consumesCounters" in device]


def shares_of(gpu: Gpu) -> ShareOffer:
    third = Division(
        count=3, strategy=ShareStrategy.TIME_SLICING, served_as="nvidia.com/gpu", combines=True
    )
    return ShareOffer(divisions={make.place(gpu): third})


@pytest.mark.parametrize("source", [MigSource.EXISTING, MigSource.OFF])
def test_a_node_without_mig_mode_publishes_what_it_would_without_mig(source: MigSource) -> None:
    gpus = [h100(minor) for minor in range(8)]
    found = auto(*gpus)
    assert names(found) == [f"gpu-{minor}" for minor in range(8)]
    assert found == auto(*gpus, source=source)
    assert (found.counter_sets, consuming(found), found.notes) == ((), [], ())


def test_a_gpu_in_mig_mode_is_offered_in_partitions_and_not_as_a_whole() -> None:
    found = auto(h100(on=True))
    assert len(names(found)) == PARTITIONS
    assert all(name.startswith("gpu-0-mig-") for name in names(found))
    assert consuming(found) == names(found)
    assert (found.notes, found.withheld) == ((), ())


def test_devices_of_claims_are_offered_beside_what_else_fits() -> None:
    made = make.mig_device(0, "2g.20gb", 2, made_here=True)
    assert names(auto(h100(0, made, on=True))) == names(auto(h100(on=True)))


def test_whole_gpus_and_partitions_stand_side_by_side() -> None:
    found = auto(h100(0), h100(1, on=True), h100(2))
    assert names(found)[:2] == ["gpu-0", "gpu-2"]
    assert {name.partition("-mig-")[0] for name in names(found)[2:]} == {"gpu-1"}
    assert [one["name"] for one in found.counter_sets] == ["gpu-1-counter-set"]
    assert not {"gpu-0", "gpu-2"} & set(consuming(found))


def test_devices_of_others_are_offered_beside_what_fits() -> None:
    hand_made = make.mig_device(0, "3g.40gb", 4)
    found = auto(h100(0, hand_made, on=True))
    assert names(found)[0] == "gpu-0-mig-3g40gb-9-4"
    assert "gpu-0-mig-3g40gb-9-0" in names(found)
    assert "gpu-0-mig-1g10gb-19-5" not in names(found)
    assert found.notes == ()


def test_a_mode_that_awaits_a_reset_is_reported() -> None:
    card = h100(needs_reset=True)
    waiting = make.gpu(
        0, mig_mode=MigMode.DISABLED, mig=make.mig(needs_reset=True, pending_mode=MigMode.ENABLED)
    )
    assert auto(card).notes == ()
    (note,) = auto(waiting).notes
    assert "takes effect only after a reset" in note.text
    assert names(auto(waiting)) == ["gpu-0"]
    held = make.gpu(0, mig_mode=MigMode.DISABLED, mig=make.mig(pending_mode=MigMode.ENABLED))
    (note,) = auto(held).notes
    assert note.text.endswith(
        "made on it: MIG mode could not be turned on while others have the GPU open; end these, "
        "and turn it on again (nvidia-smi -i 0000:10:00.0 -mig 1)"
    )


def test_without_counters_a_gpu_in_mig_mode_is_withheld_with_the_reason() -> None:
    found = auto(h100(on=True), with_counters=False)
    assert names(found) == []
    assert found.withheld[0].reason.startswith(
        "no MIG devices are made on it: the API server does not store counters"
    )
    assert "feature gate DRAPartitionableDevices" in found.withheld[0].reason
    assert "mig-parted" in found.withheld[0].reason


@pytest.mark.parametrize("source", [MigSource.AUTO, MigSource.EXISTING, MigSource.OFF])
def test_beside_on_demand_devices_only_those_of_others_are_offered(source: MigSource) -> None:
    """MIG mode was turned on by this driver, while the setting was on-demand."""
    made = make.mig_device(0, "2g.20gb", 2, made_here=True)
    theirs = make.mig_device(0, "1g.10gb", 6)
    found = auto(h100(0, made, theirs, on=True, turned_on_here=True), h100(1), source=source)
    others = [] if source is MigSource.OFF else ["gpu-0-mig-1g10gb-19-6"]
    assert (names(found), found.counter_sets) == (["gpu-1", *others], ())
    said = [note.text for note in found.notes] or [gpu.reason for gpu in found.withheld]
    assert said == [
        "this driver turned its MIG mode on for claims, and turns it off after the last"
    ]


@pytest.mark.parametrize("source", [MigSource.EXISTING, MigSource.OFF])
def test_a_gpu_in_mig_mode_with_what_was_made_for_claims_is_not_offered_whole(
    source: MigSource,
) -> None:
    made = make.mig_device(0, "2g.20gb", 2, made_here=True)
    found = auto(h100(0, made, on=True), h100(1), source=source)
    assert (names(found), found.withheld[0].reason) == (["gpu-1"], "so it was set")


def test_a_mode_that_this_driver_has_yet_to_turn_off_keeps_the_gpu_back() -> None:
    found = auto(h100(on=True, turned_on_here=True))
    assert names(found) == []
    assert "turns it off" in found.withheld[0].reason


def test_a_gpu_in_mig_mode_is_not_offered_in_shares() -> None:
    gpu = h100(on=True)
    assert names(auto(gpu, share=shares_of(gpu))) == names(auto(gpu))


def test_a_gpu_of_which_others_have_made_a_part_is_not_offered_in_shares() -> None:
    gpu = h100(0, make.mig_device(0, "1g.10gb", 6), on=True, turned_on_here=True)
    found = auto(gpu, share=shares_of(gpu), with_counters=False)
    assert names(found) == ["gpu-0-mig-1g10gb-19-6"]


def test_a_divided_gpu_is_its_shares_alone_where_that_is_set() -> None:
    gpu = h100()
    share = shares_of(gpu)
    beside = auto(gpu, share=share)
    alone = auto(
        gpu,
        share=ShareOffer(divisions=share.divisions, alone="counters are dear"),
        source=MigSource.EXISTING,
    )
    assert names(beside) == ["gpu-0", *names(alone)]
    assert (alone.counter_sets, consuming(alone)) == ((), [])
    assert [note.text for note in alone.notes] == [
        "it is published in shares only: counters are dear"
    ]


def test_a_divided_mig_device_is_its_shares_alone_where_that_is_set() -> None:
    device = make.mig_device(0, "2g.20gb", 0)
    half = Division(
        count=2,
        strategy=ShareStrategy.TIME_SLICING,
        served_as="nvidia.com/mig-2g.20gb",
        combines=True,
    )
    share = ShareOffer(divisions={make.place(device): half}, alone="counters are dear")
    found = auto(h100(0, device, on=True), share=share, source=MigSource.EXISTING)
    assert names(found) == [f"gpu-0-mig-2g20gb-14-0-share-{index}-of-2" for index in range(2)]
    assert (found.counter_sets, consuming(found)) == ((), [])
