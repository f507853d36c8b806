"""A disk that is full, and one that nobody may write to: claims are taken back all the same."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import make
from claims_world import MPS, World
from dra_driver.claims.reconcile import ReconcileTiming
from dra_driver.claims.record import RecordState
from dra_driver.errors import DeviceError, StateError, TransientError
from mig_world import MPS_ON_MIG, MigNode
from small_disk import Disk

GPU = make.gpu(1).uuid


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """The disk on which the driver's directory is."""
    if os.geteuid() != 0:
        pytest.skip("a file system of its own needs root")
    made = Disk(tmp_path / "plugin")
    yield made
    made.unmount()


@pytest.fixture
def start(disk: Disk, tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Start a driver on that disk."""
    worlds: list[World] = []

    def world(**facts: bool) -> World:
        api = worlds[0].api if worlds else None
        worlds.append(World(tmp_path, api=api, **facts))
        return worlds[-1]

    yield world
    for one in worlds:
        one.close()


@pytest.mark.parametrize("configs", [[], [MPS]], ids=["exclusive", "sharing"])
def test_a_claim_is_unprepared_on_a_full_disk(
    disk: Disk, start: Callable[..., World], configs: list[dict[str, object]]
) -> None:
    world = start()
    ref = world.api.add("gpu-1", configs=configs)
    world.prepare(ref)
    disk.fill()
    world.unprepare(ref)
    disk.empty()
    assert world.left() == []


def test_mig_devices_are_given_back_on_a_full_disk_and_mig_mode_is_turned_off(
    tmp_path: Path,
) -> None:
    if os.geteuid() != 0:
        pytest.skip("a file system of its own needs root")
    disk = Disk(tmp_path / "state" / "plugin")
    try:
        node = MigNode.create(tmp_path)
        ref = node.claim(node.name("1g.10gb", 0), node.name("1g.10gb", 1), configs=[MPS_ON_MIG])
        node.world.prepare(ref)
        disk.fill()
        held = node.there()[0].uuid
        node.machine.hold_instance(held)
        with pytest.raises(TransientError, match="cannot be unprepared yet"):
            node.world.unprepare(ref, 0.3)
        node.machine.release_instance(held)
        node.world.unprepare(ref)
        disk.empty()
        assert node.left() == []
        node.close()
    finally:
        disk.unmount()


def test_what_cannot_be_written_down_as_pending_is_found_again(
    disk: Disk, start: Callable[..., World]
) -> None:
    world = start()
    ref = world.api.add("gpu-1", configs=[MPS])
    world.prepare(ref)
    disk.fill()
    world.sharing.refuse_undo = DeviceError("the GPU refused")
    world.unprepare(ref)
    world.unprepare(ref)
    assert not world.specs.exists(ref.uid)
    record = start().claims.records.read(ref.uid)
    assert record is not None
    assert [cleanup.name for cleanup in record.pending] == ["MPS"]
    world.sharing.refuse_undo = None
    assert not start().reconciler(ReconcileTiming()).mend(), "it is taken back on a full disk too"
    disk.empty()
    assert world.left() == []


def test_it_keeps_the_next_claim_away_only_while_nobody_can_share_the_gpu_with_it(
    disk: Disk, start: Callable[..., World]
) -> None:
    for survives, error in ((False, None), (True, TransientError)):
        world = start(survives_reboot=survives)
        former = world.api.add("gpu-1", uid=f"former-{survives}", name="former", configs=[MPS])
        world.prepare(former)
        disk.fill()
        world.sharing.refuse_undo = DeviceError("the GPU refused")
        world.unprepare(former)
        disk.empty()
        ref = world.api.add("gpu-1", uid="next", name="next")
        if error:
            with pytest.raises(error, match="MPS of an earlier claim has not ended"):
                world.prepare(ref, seconds=0.05)
        else:
            world.prepare(ref)
        world.unprepare(ref)
        world.sharing.refuse_undo = None
        assert not world.reconciler(ReconcileTiming()).mend()
        assert world.left() == []


def test_a_directory_that_cannot_be_written_is_an_error_and_nothing_is_lost(
    disk: Disk, start: Callable[..., World]
) -> None:
    world = start()
    ref, other = world.api.add("gpu-1", configs=[MPS]), world.api.add("gpu-2", uid="o", name="o")
    devices = world.prepare(ref)
    before = world.left()
    with disk.read_only():
        for call, one in ((world.unprepare, ref), (world.prepare, other)):
            with pytest.raises(StateError, match="Read-only file system; check the free space and"):
                call(one)
        assert world.left() == before
        assert world.set_on(GPU) == ref.uid
        assert world.prepare(ref) == devices
    record = world.claims.records.read(ref.uid)
    assert record is not None
    assert record.state is RecordState.PREPARED
    world.unprepare(ref)
    assert world.left() == []
