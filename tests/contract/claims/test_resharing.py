"""A share config that changes between allocating and preparing, and while claims are prepared."""

from pathlib import Path

import pytest

from dra_driver.claims.model.claim import ClaimRef
from dra_driver.devices.device import Base, Whole
from dra_driver.devices.shares import ShareStrategy
from dra_driver.errors import ConflictError, DeviceError
from dra_driver.shares.notes import read_notes
from dra_driver.slices.consumable import Consumable, ConsumableMode
from resource_nvidia_com.device_plugin import SharedBy
from worlds.divided_node import GPUS, SMALL, DividedNode, config

FIRST, SECOND = (Whole(gpu=one.uuid) for one in GPUS[:2])
CONSUMABLE = Consumable(mode=ConsumableMode.UNLIMITED)
TURNS, MPS = ShareStrategy.TIME_SLICING, ShareStrategy.MPS


def offered(node: DividedNode, part: Base = FIRST) -> tuple[int, ShareStrategy] | None:
    found = node.offered().get(part)
    return None if found is None else (found.count, found.strategy)


def allocated(node: DividedNode, device: str, name: str = "claim") -> ClaimRef:
    ref = node.allocate(device, name)
    assert ref is not None
    return ref


def prepare(node: DividedNode, ref: ClaimRef) -> None:
    assert node.driver is not None
    node.driver.prepare(ref)
    node.look()


def end(node: DividedNode, ref: ClaimRef) -> None:
    assert node.driver is not None
    node.driver.unprepare(ref)
    node.delete(ref)
    node.look()


def prepared_with(node: DividedNode, ref: ClaimRef) -> tuple[int, ShareStrategy]:
    assert node.driver is not None
    record = node.driver.claims.records.read(ref.uid)
    assert record is not None
    division = record.devices[0].device.division
    assert division is not None
    return division.count, division.strategy


def test_a_claim_that_is_not_prepared_keeps_no_division(tmp_path: Path) -> None:
    node = DividedNode(tmp_path, config(2))
    allocated(node, "gpu-0-single-share-0-of-2")
    node.set(config(3))
    assert offered(node) == (3, TURNS)
    assert node.waiting() == frozenset()
    assert read_notes(tmp_path / "plugin").remarks == ()


def test_what_was_allocated_before_is_prepared_by_the_division_that_holds(tmp_path: Path) -> None:
    node = DividedNode(tmp_path, config(2))
    ref = allocated(node, "gpu-0-single-share-0-of-2")
    node.set(config(2, SharedBy.MPS))
    prepare(node, ref)
    assert prepared_with(node, ref) == (2, MPS)


def test_a_share_that_is_not_there_any_more_is_refused_and_told_what_to_do(tmp_path: Path) -> None:
    node = DividedNode(tmp_path, config(2))
    ref = allocated(node, "gpu-0-single-share-0-of-2")
    node.set(config(3))
    with pytest.raises(DeviceError, match=r"into 3 shares .*: the share config changed"):
        prepare(node, ref)
    prepare(node, allocated(node, "gpu-0-single-share-0-of-3", "next"))
    node.set(config(0))
    with pytest.raises(DeviceError, match="delete the pod and its claim"):
        prepare(node, ref)


def test_a_claim_that_is_prepared_keeps_its_division_until_it_ends(tmp_path: Path) -> None:
    node = DividedNode(tmp_path, config(2))
    first = allocated(node, "gpu-0-single-share-0-of-2", "first")
    prepare(node, first)
    node.set(config(2, SharedBy.MPS))
    assert offered(node) == (2, TURNS)
    assert offered(node, SECOND) == (2, MPS), "another GPU waits for nothing"
    assert node.waiting() == {FIRST}
    assert read_notes(tmp_path / "plugin").waiting == ("gpu-0",)
    second = allocated(node, "gpu-0-single-share-1-of-2", "second")
    prepare(node, second)
    assert prepared_with(node, second) == (2, TURNS)
    end(node, first)
    assert offered(node) == (2, TURNS)
    end(node, second)
    assert offered(node) == (2, MPS)


@pytest.mark.parametrize("reboots", [False, True])
def test_a_new_driver_knows_from_records_alone_what_is_kept(tmp_path: Path, reboots: bool) -> None:
    node = DividedNode(tmp_path, config(2))
    ref, late = (allocated(node, f"gpu-0-single-share-{n}-of-2", f"c{n}") for n in (0, 1))
    prepare(node, ref)
    node.set(config(0))
    if reboots:
        node.reboot()
    else:
        node.start()
    assert offered(node) == (2, TURNS)
    prepare(node, ref)
    prepare(node, late)
    assert prepared_with(node, ref) == prepared_with(node, late) == (2, TURNS)


def test_a_whole_gpu_of_before_is_had_if_no_share_of_it_is_and_keeps_shares_away(
    tmp_path: Path,
) -> None:
    node = DividedNode(tmp_path, config(0), with_counters=False)
    whole, late = allocated(node, "gpu-0", "whole"), allocated(node, "gpu-1", "late")
    node.set(config(2))
    assert offered(node) == offered(node, SECOND) == (2, TURNS)
    prepare(node, whole)
    assert offered(node) is None
    assert node.waiting() == {FIRST}
    prepare(node, allocated(node, "gpu-1-single-share-0-of-2", "tenant"))
    with pytest.raises(ConflictError, match=r"allocated to different claim default/tenant .*pods"):
        prepare(node, late)
    end(node, whole)
    assert offered(node) == (2, TURNS)


def test_a_share_of_before_does_not_come_below_a_whole_gpu(tmp_path: Path) -> None:
    node = DividedNode(tmp_path, config(2))
    share = allocated(node, "gpu-0-single-share-0-of-2", "share")
    node.set(config(0))
    prepare(node, allocated(node, "gpu-0", "whole"))
    with pytest.raises(DeviceError, match="the device is not divided"):
        prepare(node, share)


def test_a_gpu_that_is_consumed_in_parts_is_divided_once_nobody_has_a_part(tmp_path: Path) -> None:
    node = DividedNode(tmp_path, config(0), consumable=CONSUMABLE)
    ref, late = allocated(node, "gpu-0", "part"), allocated(node, "gpu-1", "late")
    prepare(node, ref)
    node.set(config(2))
    assert offered(node) is None
    prepare(node, allocated(node, "gpu-1-single-share-0-of-2", "tenant"))
    with pytest.raises(ConflictError, match="allocated to different claim default/tenant"):
        prepare(node, late)
    end(node, ref)
    assert offered(node) == (2, TURNS)


def test_shares_of_a_mig_device_wait_as_those_of_a_gpu_do(tmp_path: Path) -> None:
    node = DividedNode(tmp_path, config(2, name=SMALL))
    name = next(one for one in node.published() if "-share-0-of-2" in one)
    ref = allocated(node, name)
    prepare(node, ref)
    node.set(config(3, name=SMALL))
    assert not any("-share-2-of-3" in one for one in node.published())
    end(node, ref)
    assert any("-share-2-of-3" in one for one in node.published())


def test_counters_keep_a_whole_gpu_and_its_first_shares_apart(tmp_path: Path) -> None:
    node = DividedNode(tmp_path, config(0))
    prepare(node, allocated(node, "gpu-0", "whole"))
    node.set(config(2))
    assert {"gpu-0", "gpu-0-single-share-0-of-2"} <= set(node.published())
    assert node.allocate("gpu-0-single-share-0-of-2", "tenant") is None
    assert node.waiting() == frozenset()
