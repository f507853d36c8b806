"""A share config that changes between allocating and preparing, and while claims are prepared."""

from pathlib import Path

import pytest

from dra_driver.claims.model.claim import ClaimRef
from dra_driver.devices.shares import ShareStrategy
from dra_driver.errors import DeviceError
from resource_nvidia_com.device_plugin import SharedBy
from worlds.divided_node import SMALL, DividedNode, config


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
    record = node.driver.claims.ledger.read(ref.uid)
    assert record is not None
    division = record.devices[0].device.division
    assert division is not None
    return division.count, division.strategy


def test_an_earlier_allocation_gets_the_division_in_force(tmp_path: Path) -> None:
    node = DividedNode(tmp_path, config(2))
    ref = allocated(node, "gpu-0-single-share-0-of-2")
    node.set(config(2, SharedBy.MPS))
    prepare(node, ref)
    assert prepared_with(node, ref) == (2, ShareStrategy.MPS)


def test_a_share_that_no_longer_exists_is_refused_with_advice(tmp_path: Path) -> None:
    node = DividedNode(tmp_path, config(2))
    ref = allocated(node, "gpu-0-single-share-0-of-2")
    node.set(config(3))
    with pytest.raises(DeviceError, match=r"into 3 shares .*: the share config changed"):
        prepare(node, ref)
    prepare(node, allocated(node, "gpu-0-single-share-0-of-3", "next"))
    node.set(config(0))
    with pytest.raises(DeviceError, match="delete the pod and its claim"):
        prepare(node, ref)


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
