"""A supervisor that starts on a disk that is read-only or full goes to work when it can."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import structlog
from testbed.disk import SmallDisk

from dra_driver.errors import StateError
from worlds.configs import PATIENCE
from worlds.mps import MpsDomains
from worlds.process import eventually

Block = Callable[[SmallDisk], AbstractContextManager[None]]


@pytest.fixture
def disk(mps: MpsDomains, small_disk: Callable[[Path], SmallDisk]) -> SmallDisk:
    """The disk on which driver and supervisor meet."""
    return small_disk(mps.files.root)


@pytest.mark.parametrize("block", [SmallDisk.read_only, SmallDisk.full], ids=["read-only", "full"])
def test_a_supervisor_waits_for_its_disk(mps: MpsDomains, disk: SmallDisk, block: Block) -> None:
    supervisor = mps.supervisor()
    with structlog.testing.capture_logs() as said, block(disk):
        supervisor.start()
        eventually(lambda: [one for one in said if "waits" in one["event"]], "its word")
        assert supervisor._thread.is_alive()
    try:
        domain = mps.domain("after", 0)
        mps.ready(domain)
        mps.gone(domain)
    finally:
        supervisor.stop(PATIENCE)


def test_a_supervisor_that_waits_for_its_disk_can_be_stopped(
    mps: MpsDomains, disk: SmallDisk
) -> None:
    supervisor = mps.supervisor()
    with disk.read_only():
        supervisor.start()
        assert supervisor.stop(PATIENCE)
    supervisor.stop(PATIENCE)  # once more, when it has ended: nothing happens


def test_a_directory_that_cannot_be_one_ends_the_supervisor(mps: MpsDomains) -> None:
    root: Path = mps.files.root
    root.parent.mkdir(parents=True, exist_ok=True)
    root.write_text("a file")
    with pytest.raises(StateError, match="cannot make"):
        mps.supervisor()._run()
