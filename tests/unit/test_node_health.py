"""Health put together: who asks by device name, and who is told."""

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs
from testbed.commands import wait_until

import make
from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.claims.report.device_health import WELL as WELL_DEVICE
from dra_driver.claims.report.device_health import DeviceHealth, HealthState
from dra_driver.devices.exclusion import without_excluded
from dra_driver.devices.gpu_words import gpu_words
from dra_driver.devices.model import (
    Gpu,
    GpuEvent,
    GpuUuid,
    InstanceId,
    Inventory,
    MigDevice,
    MigMode,
    SickGpu,
    Vitals,
)
from dra_driver.errors import StateError
from dra_driver.kube.outbox import Outbox
from dra_driver.node.context import Changes
from dra_driver.node.health import GONE, REASON, NodeHealth
from dra_driver.node.settings import Settings
from dra_driver.ops.metrics import Metrics

WELL = Vitals(recovery_action=0)
DEVICES = (make.mig_device(0), make.mig_device(0, "2g.20gb", 2))
DIVIDED = make.gpu(0, mig_mode=MigMode.ENABLED, mig=make.mig(*DEVICES), vitals=WELL)
WHOLE = make.gpu(1, vitals=WELL)


class World:
    """A machine, its watcher, its claims and its API server."""

    def __init__(self, folder: Path) -> None:
        self.inventory = make.inventory(DIVIDED, WHOLE)
        self.events: list[GpuEvent] = []
        self.told: list[tuple[str, str]] = []
        self.outbox = Outbox()
        self.changes = 0
        self.records: dict[str, list[ClaimRecord]] = {}
        self.reason = REASON
        self.before: Inventory | None = None
        self.looks = 0
        self.during: Callable[[], object] = lambda: None
        self.unread = 0
        context: Any = SimpleNamespace(
            settings=Settings(node_name="n"),
            ledger=self,
            metrics=Metrics(driver="gpu.nvidia.com", node="n", version="1"),
            events=self,
            outbox=self.outbox,
            directory=folder,
            boot_id="boot-1",
            changes=Changes(),
        )
        context.changes.health.add(self.changed)
        self.health = NodeHealth(context, self)
        self.health.watcher = self  # whose looks are this world's

    def look(self) -> Inventory:
        self.during()
        return self.inventory

    def doing(self, device: Gpu | MigDevice) -> DeviceHealth:
        return self.health.of_device(record("any", device, DIVIDED), make.device(device))

    def next_event(self, seconds: float) -> GpuEvent | None:
        if self.events:
            return self.events.pop(0)
        time.sleep(min(seconds, 0.01))
        return None

    def current(self) -> Inventory:
        return self.before or self.inventory

    def ring(self) -> None:
        self.looks += 1

    def prepared(self) -> Iterator[ClaimRecord]:
        return (one for found in self.records.values() for one in found)

    def still_holds(self, record: ClaimRecord) -> bool:
        return any(one is record for found in self.records.values() for one in found)

    def users_of(self, gpu: GpuUuid) -> Iterable[ClaimRecord]:
        if gpu not in self.records:
            self.unread += 1
            raise StateError("no records")
        return self.records[gpu]

    def changed(self) -> None:
        self.changes += 1

    def post_on_claim(self, ref: ClaimRef, *, reason: str, action: str, note: str) -> None:
        assert (reason, action) == (self.reason, "CheckingDevices")
        self.told.append((ref.name, note))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    world.health.look()
    world.health.start()
    world.outbox.start()
    yield world
    world.health.stop(10)
    world.outbox.stop(10)


def record(name: str, device: Gpu | MigDevice, gpu: Gpu) -> ClaimRecord:
    made = make.record(gpu)
    ref = ClaimRef(uid=ClaimUid(f"uid-{name}"), namespace="default", name=name)
    entry = replace(made.devices[0], device=make.device(device))
    return replace(made, ref=ref, devices=(entry,))


def eventually(condition: Callable[[], object]) -> None:
    wait_until(condition, "the condition", timeout=20, interval=0.01)


def test_health_is_looked_up_by_device(world: World) -> None:
    mine, other, whole = DEVICES[0], DEVICES[1], WHOLE
    assert {world.doing(one) for one in (mine, other, whole)} == {WELL_DEVICE}
    instance = InstanceId(gpu_instance=DEVICES[0].gpu_instance)
    world.events.append(GpuEvent(gpu=DIVIDED.uuid, xid=62, instance=instance))
    world.events.append(GpuEvent(gpu=WHOLE.uuid, xid=79))
    eventually(lambda: world.doing(whole).state is HealthState.UNHEALTHY)
    assert "XID 79" in world.doing(whole).message
    assert "XID 62" in world.doing(mine).message
    assert world.doing(other) == WELL_DEVICE
    eventually(lambda: world.looks == 1)


def test_events_go_to_claims_of_the_gpu_or_of_its_mig_device(world: World) -> None:
    claims = [record(f"on-{one.gpu_instance}", one, DIVIDED) for one in DEVICES]
    world.records = {DIVIDED.uuid: claims, WHOLE.uuid: [record("whole", WHOLE, WHOLE)]}
    mine = DEVICES[0].gpu_instance
    world.events.append(GpuEvent(gpu=DIVIDED.uuid, xid=62, instance=InstanceId(gpu_instance=mine)))
    eventually(lambda: world.told)
    world.events.append(GpuEvent(gpu=DIVIDED.uuid, xid=48))
    eventually(lambda: len(world.told) == 3)
    assert [name for name, _ in world.told] == [f"on-{mine}", *(claim.ref.name for claim in claims)]
    assert world.told[0][1].startswith("gpu-0: XID 62: ")


def test_an_excluded_gpus_events_are_ignored(world: World) -> None:
    left = without_excluded(world.inventory, gpu_words(WHOLE.uuid))
    world.inventory = left
    world.health.look()
    after = record("after", DEVICES[0], DIVIDED)
    world.records = {WHOLE.uuid: [record("whole", WHOLE, WHOLE)], DIVIDED.uuid: [after]}
    world.events.append(GpuEvent(gpu=WHOLE.uuid, xid=79))
    world.events.append(GpuEvent(gpu=DIVIDED.uuid, xid=62))
    eventually(lambda: world.told)
    assert [name for name, _ in world.told] == ["after"]


def test_claims_get_one_event_for_a_removed_gpu(world: World) -> None:
    world.records = {GpuUuid(WHOLE.uuid): [record("whole", WHOLE, WHOLE)]}
    world.reason, world.before = GONE, world.inventory
    world.inventory = make.inventory(DIVIDED)
    world.health.look()
    world.before = None
    world.health.look()
    eventually(lambda: world.told)
    ((name, note),) = world.told
    assert name == "whole"
    assert note.startswith(f"gpu-1: {WHOLE.uuid} is no longer found on this node: it was removed")


def test_a_removed_mig_device_is_one_event_on_its_claim(world: World) -> None:
    had = record("had", DEVICES[0], DIVIDED)
    world.reason, world.records = GONE, {DIVIDED.uuid: [had]}
    world.inventory = make.inventory(replace(DIVIDED, mig=make.mig(DEVICES[1])), WHOLE)
    with capture_logs() as logs:
        world.health.look()
        world.health.look()
    eventually(lambda: world.told)
    ((name, note),) = world.told
    assert name == "had"
    assert f"{DEVICES[0].uuid} (1g.10gb of {DIVIDED.uuid}) no longer exists" in note
    assert [line["event"] for line in logs] == ["mig device of a claim is gone"]
    device = make.device(DEVICES[0])
    assert world.health.of_device(had, device).reason == "MigDeviceMissing"
    again = record("had", DEVICES[0], DIVIDED)
    assert world.health.of_device(again, device) == WELL_DEVICE


def test_a_mig_device_that_went_before_any_look_saw_it_changes_the_health_at_once(
    world: World,
) -> None:
    world.inventory = make.inventory(replace(DIVIDED, mig=make.mig(DEVICES[1])), WHOLE)
    world.health.look()
    world.reason, world.records = GONE, {DIVIDED.uuid: [record("had", DEVICES[0], DIVIDED)]}
    world.health.look()
    assert world.changes == 1
    world.health.look()
    assert world.changes == 1


def test_claims_that_change_during_a_scan_have_lost_nothing(world: World) -> None:
    ended, fresh = (record(name, DEVICES[0], DIVIDED) for name in ("ended", "fresh"))
    world.records = {DIVIDED.uuid: [ended]}
    world.during = lambda: world.records.update({DIVIDED.uuid: [fresh]})
    world.inventory = make.inventory(replace(DIVIDED, mig=make.mig(DEVICES[1])), WHOLE)
    world.health.look()
    device = make.device(DEVICES[0])
    assert {world.health.of_device(one, device) for one in (ended, fresh)} == {WELL_DEVICE}


def test_a_gpu_that_is_out_of_reach_was_not_removed(world: World) -> None:
    world.records = {GpuUuid(WHOLE.uuid): [record("whole", WHOLE, WHOLE)]}
    world.before = world.inventory
    lost = SickGpu(index=WHOLE.index, reason="it is lost", is_lost=True)
    world.inventory = make.inventory(DIVIDED, sick=(lost,))
    world.health.look()
    eventually(lambda: world.told)
    ((_, note),) = world.told
    assert note.startswith("gpu-1: the GPU is out of reach")


def test_a_warning_is_no_event(world: World) -> None:
    world.records = {WHOLE.uuid: [record("whole", WHOLE, WHOLE)]}
    world.events += [GpuEvent(gpu=WHOLE.uuid, xid=92), GpuEvent(gpu=WHOLE.uuid, xid=62)]
    eventually(lambda: any("XID 62" in note for _, note in world.told))
    assert len(world.told) == 1


def test_records_that_cannot_be_read_end_nothing(world: World) -> None:
    world.events.append(GpuEvent(gpu=WHOLE.uuid, xid=62))
    eventually(lambda: world.unread)
    world.records = {DIVIDED.uuid: [record("one", DEVICES[0], DIVIDED)]}
    world.events.append(GpuEvent(gpu=DIVIDED.uuid, xid=62))
    eventually(lambda: [name for name, _ in world.told] == ["one"])
