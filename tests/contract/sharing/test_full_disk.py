"""Driver and MPS supervisor on a disk with no byte left: pods end all the same."""

from collections.abc import Callable
from pathlib import Path

import pytest
from testbed.disk import SmallDisk

from worlds.configs import REQUESTS
from worlds.node import Node


@pytest.fixture
def disks(tmp_path: Path, small_disk: Callable[[Path], SmallDisk]) -> list[SmallDisk]:
    """The driver's directory and the MPS directory of the node that is made next."""
    return [small_disk(tmp_path / "node0" / folder) for folder in ("state/plugin", "mps")]


@pytest.mark.parametrize("mode", REQUESTS)
def test_claims_are_unprepared_on_a_full_disk(
    disks: list[SmallDisk], node: Node, mode: str
) -> None:
    with node.mps.supervised():
        ref = node.claim_gpus(REQUESTS[mode])
        node.driver.prepare(ref)
        for disk in disks:
            disk.fill()
        node.driver.unprepare(ref)
        assert node.driver.cleanups(ref) == []
        for disk in disks:
            disk.empty()
        assert node.left() == []


def test_claims_are_unprepared_on_a_full_disk_without_a_supervisor_and_ended_by_the_next(
    disks: list[SmallDisk], node: Node
) -> None:
    ref = node.claim_gpus(REQUESTS["mps"])
    with node.mps.supervised():
        node.driver.prepare(ref)
    for disk in disks:
        disk.fill()
    node.driver.unprepare(ref, 1.0)
    assert [name for name, _ in node.driver.cleanups(ref)] == ["MPS"]
    with node.mps.supervised():
        node.driver.unprepare(ref)
        for disk in disks:
            disk.empty()
        assert node.left() == []
