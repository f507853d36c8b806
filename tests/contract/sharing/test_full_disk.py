"""Driver and MPS supervisor on a disk with no byte left: pods end all the same."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from sharing_world import REQUESTS, Node
from small_disk import Disk

Supervised = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[Disk]]:
    """The driver's directory and the MPS directory of the node that is made next."""
    if os.geteuid() != 0:
        pytest.skip("a file system of its own needs root")
    made = [Disk(tmp_path / "node0" / folder) for folder in ("state/plugin", "mps")]
    yield made
    for disk in made:
        disk.unmount()


@pytest.mark.parametrize("mode", REQUESTS)
def test_claims_are_unprepared_on_a_full_disk(
    disks: list[Disk], node: Node, supervised: Supervised, mode: str
) -> None:
    with supervised(node):
        ref = node.claim(REQUESTS[mode])
        node.prepare(ref)
        for disk in disks:
            disk.fill()
        node.unprepare(ref)
        assert node.cleanups(ref) == []
        for disk in disks:
            disk.empty()
        assert node.left() == []


def test_claims_are_unprepared_on_a_full_disk_without_a_supervisor_and_ended_by_the_next(
    disks: list[Disk], node: Node, supervised: Supervised
) -> None:
    ref = node.claim(REQUESTS["mps"])
    with supervised(node):
        node.prepare(ref)
    for disk in disks:
        disk.fill()
    node.world.unprepare(ref, 1.0)
    assert [name for name, _ in node.cleanups(ref)] == ["MPS"]
    with supervised(node):
        node.unprepare(ref)
        for disk in disks:
            disk.empty()
        assert node.left() == []
