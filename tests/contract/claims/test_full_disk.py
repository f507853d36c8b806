"""A disk that is full, and one that nobody may write to: claims are taken back all the same."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from testbed.disk import SmallDisk

import make
from dra_driver.claims.model.record import RecordState
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from dra_driver.errors import DeviceError, StateError, TransientError
from dra_driver.sharing.steps import TimeSlice
from worlds.configs import MPS, MPS_ON_MIG
from worlds.driver import Driver
from worlds.node import Node

GPU = make.gpu(1).uuid


@pytest.fixture
def disk(tmp_path: Path, small_disk: Callable[[Path], SmallDisk]) -> SmallDisk:
    """The disk on which the driver's directory is."""
    return small_disk(tmp_path / "plugin")


@pytest.fixture
def start(disk: SmallDisk, tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """Start a driver on that disk."""
    worlds: list[Driver] = []

    def driver(**facts: bool) -> Driver:
        api = worlds[0].api if worlds else None
        worlds.append(Driver(tmp_path, api=api, **facts))
        return worlds[-1]

    yield driver
    for world in worlds:
        world.close()


@pytest.mark.parametrize("configs", [[], [MPS]], ids=["exclusive", "sharing"])
def test_a_claim_is_unprepared_on_a_full_disk(
    disk: SmallDisk, start: Callable[..., Driver], configs: list[dict[str, object]]
) -> None:
    driver = start()
    ref = driver.api.add("gpu-1", configs=configs)
    driver.prepare(ref)
    disk.fill()
    driver.unprepare(ref)
    disk.empty()
    assert driver.left() == []


def test_mig_devices_are_given_back_on_a_full_disk_and_mig_mode_is_turned_off(
    tmp_path: Path,
) -> None:
    if os.geteuid() != 0:
        pytest.skip("a file system of its own needs root")
    disk = SmallDisk(tmp_path / "state" / "plugin")
    try:
        node = Node.create(tmp_path)
        ref = node.claim(node.name("1g.10gb", 0), node.name("1g.10gb", 1), configs=[MPS_ON_MIG])
        node.driver.prepare(ref)
        disk.fill()
        held = node.migs()[0].uuid
        node.machine.hold_instance(held)
        with pytest.raises(TransientError, match="cannot be unprepared yet"):
            node.driver.unprepare(ref, 0.3)
        node.machine.release_instance(held)
        node.driver.unprepare(ref)
        disk.empty()
        assert node.left() == []
        node.close()
    finally:
        disk.unmount()


def test_cleanup_that_could_not_be_recorded_is_found_again(
    disk: SmallDisk, start: Callable[..., Driver]
) -> None:
    driver = start()
    ref = driver.api.add("gpu-1", configs=[MPS])
    driver.prepare(ref)
    disk.fill()
    driver.sharing.refuse_undo = DeviceError("the GPU refused")
    driver.unprepare(ref)
    driver.unprepare(ref)
    assert not driver.specs.exists(ref.uid)
    record = start().claims.ledger.read(ref.uid)
    assert record is not None
    assert [cleanup.of.name for cleanup in record.pending] == [TimeSlice.name]
    driver.sharing.refuse_undo = None
    assert not start().reconciler(ReconcileTiming()).mend(), "it is taken back on a full disk too"
    disk.empty()
    assert driver.left() == []


def test_it_blocks_the_next_claim_only_while_sharing_is_impossible(
    disk: SmallDisk, start: Callable[..., Driver]
) -> None:
    for survives, error in ((False, None), (True, TransientError)):
        driver = start(survives_reboot=survives)
        former = driver.api.add("gpu-1", uid=f"former-{survives}", name="former", configs=[MPS])
        driver.prepare(former)
        disk.fill()
        driver.sharing.refuse_undo = DeviceError("the GPU refused")
        driver.unprepare(former)
        disk.empty()
        ref = driver.api.add("gpu-1", uid="next", name="next")
        if error:
            with pytest.raises(error, match="MPS of an earlier claim has not ended"):
                driver.prepare(ref, seconds=0.05)
        else:
            driver.prepare(ref)
        driver.unprepare(ref)
        driver.sharing.refuse_undo = None
        assert not driver.reconciler(ReconcileTiming()).mend()
        assert driver.left() == []


def test_a_directory_that_cannot_be_written_is_an_error_and_nothing_is_lost(
    disk: SmallDisk, start: Callable[..., Driver]
) -> None:
    driver = start()
    ref, other = driver.api.add("gpu-1", configs=[MPS]), driver.api.add("gpu-2", uid="o", name="o")
    devices = driver.prepare(ref)
    before = driver.left()
    with disk.read_only():
        for call, one in ((driver.unprepare, ref), (driver.prepare, other)):
            with pytest.raises(StateError, match="Read-only file system; check the free space and"):
                call(one)
        assert driver.left() == before
        assert driver.set_on(GPU) == ref.uid
        assert driver.prepare(ref) == devices
    record = driver.claims.ledger.read(ref.uid)
    assert record is not None
    assert record.state is RecordState.PREPARED
    driver.unprepare(ref)
    assert driver.left() == []
