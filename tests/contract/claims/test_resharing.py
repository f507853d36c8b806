"""A share config that changes between allocation and preparing, step by step of the thread."""

from pathlib import Path

from dra_driver.devices.kinds import GpuPart
from dra_driver.devices.shares import ShareStrategy
from dra_driver.errors import UnavailableError
from dra_driver.shares.notes import read_notes
from dra_driver.slices.consumable import Consumable, ConsumableMode
from resource_nvidia_com.device_plugin import SharedBy
from worlds.divided_node import GPUS, SMALL, DividedNode, config

PART = GpuPart(gpu=GPUS[0].uuid)
CONSUMABLE = Consumable(mode=ConsumableMode.UNLIMITED)


def in_force(node: DividedNode) -> tuple[int, ShareStrategy] | None:
    found = node.in_force().get(PART)
    return None if found is None else (found.count, found.strategy)


def test_a_device_is_withdrawn_before_it_is_divided_anew(tmp_path: Path) -> None:
    node = DividedNode(tmp_path, config(2))
    node.set(config(3))
    assert not any(name.startswith("gpu-0") for name in node.published())
    node.reshare()
    assert "gpu-0-share-2-of-3" in node.published()


def test_what_claims_give_back_matters_as_long_as_something_is_divided_or_is_to_be(
    tmp_path: Path,
) -> None:
    node = DividedNode(tmp_path, config(0))
    assert not node.divisions.are_any()
    node.set(config(2))
    assert node.divisions.are_any()
    ref = node.allocate("gpu-0-share-0-of-2", "tenant")
    assert ref is not None
    node.set(config(0))
    node.reshare()
    assert node.divisions.are_any()
    node.delete(ref)
    node.reshare()
    assert in_force(node) is None
    assert not node.divisions.are_any()


def test_a_share_of_the_same_name_under_another_strategy_is_what_was_allocated(
    tmp_path: Path,
) -> None:
    node = DividedNode(tmp_path, config(2))
    ref = node.allocate("gpu-0-share-0-of-2", "early")
    assert ref is not None
    node.set(config(2, SharedBy.MPS))
    node.reshare()
    assert in_force(node) == (2, ShareStrategy.TIME_SLICING)
    assert "gpu-0-share-1-of-2" in node.published()
    node.delete(ref)
    node.reshare()
    assert in_force(node) == (2, ShareStrategy.MPS)


def test_an_allocation_that_is_stored_late_is_found(tmp_path: Path) -> None:
    node = DividedNode(tmp_path, config(2))
    ref = node.allocate("gpu-0-share-0-of-2", "late", in_flight=True)
    assert ref is not None
    node.set(config(0))
    node.reshare()
    assert in_force(node) == (2, ShareStrategy.TIME_SLICING)
    assert node.driver is not None
    node.driver.prepare(ref)


def test_a_gpu_that_is_allocated_whole_is_not_put_under_a_common_daemon(tmp_path: Path) -> None:
    node = DividedNode(tmp_path, config(0))
    ref = node.allocate("gpu-0", "whole")
    assert ref is not None
    node.set(config(2, SharedBy.MPS, combines=True))
    node.reshare()
    assert node.in_force() == {}
    node.delete(ref)
    node.reshare()
    assert in_force(node) == (2, ShareStrategy.MPS)


def test_counters_keep_a_whole_gpu_and_its_first_shares_apart_without_a_look(
    tmp_path: Path,
) -> None:
    node = DividedNode(tmp_path, config(0))
    assert node.allocate("gpu-0", "whole")
    node.api.asked.clear()
    node.set(config(2))
    assert {"gpu-0", "gpu-0-share-0-of-2"} <= set(node.published())
    node.reshare()
    assert "" not in node.api.asked
    assert node.allocate("gpu-0-share-0-of-2", "tenant") is None


def test_a_gpu_that_is_consumed_in_parts_is_not_divided(tmp_path: Path) -> None:
    node = DividedNode(tmp_path, config(0), consumable=CONSUMABLE)
    ref = node.allocate("gpu-0", "part")
    assert ref is not None
    node.set(config(2))
    node.reshare()
    assert "gpu-0-share-0-of-2" not in node.published()
    assert node.driver is not None
    node.driver.prepare(ref)
    node.reshare()
    assert "gpu-0-share-0-of-2" not in node.published()
    node.driver.unprepare(ref)
    node.delete(ref)
    node.reshare()
    assert "gpu-0-share-0-of-2" in node.published()


def test_a_change_of_one_device_waits_for_no_claim_of_another(tmp_path: Path) -> None:
    node = DividedNode(tmp_path, config(2))
    assert node.allocate("gpu-1-share-0-of-2", "other")
    node.set(config(3))
    node.reshare()
    assert in_force(node) == (3, ShareStrategy.TIME_SLICING)


def test_shares_of_a_mig_device_wait_as_those_of_a_gpu_do(tmp_path: Path) -> None:
    node = DividedNode(tmp_path, config(2, name=SMALL))
    name = next(one for one in node.published() if "-share-0-of-2" in one)
    ref = node.allocate(name, "early")
    assert ref is not None
    node.set(config(3, name=SMALL))
    node.reshare()
    assert node.driver is not None
    node.driver.prepare(ref)
    node.driver.unprepare(ref)
    node.delete(ref)
    node.reshare()
    assert any("-share-2-of-3" in one for one in node.published())


def test_without_an_answer_the_former_division_is_offered_again(tmp_path: Path) -> None:
    node = DividedNode(tmp_path, config(2))
    land = node.api.trouble

    def fail(name: str) -> None:
        raise UnavailableError("away")

    node.api.trouble = fail
    node.set(config(3))
    node.resharing.look()
    assert "gpu-0-share-0-of-2" in node.published()
    assert "a new config waits: away" in " ".join(read_notes(tmp_path / "plugin").remarks)
    node.api.trouble = land
    node.reshare()
    assert in_force(node) == (3, ShareStrategy.TIME_SLICING)


def test_after_a_reboot_in_between_a_claim_gets_what_it_was_allocated(tmp_path: Path) -> None:
    node = DividedNode(tmp_path, config(2))
    ref = node.allocate("gpu-0-share-0-of-2", "early")
    assert ref is not None
    node.set(config(0))
    node.reboot()
    node.reshare()
    assert node.driver is not None
    node.driver.prepare(ref)
