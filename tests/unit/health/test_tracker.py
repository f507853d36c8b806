"""What is wrong with the GPUs of a node, kept from looks and events, over restarts."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

import make
from dra_driver.devices.health.debounce import GpuCondition
from dra_driver.devices.health.record import GpuHealth, HealthFile, read_health
from dra_driver.devices.health.tracker import HealthTracker, at_their_places
from dra_driver.devices.model import Gpu, GpuEvent, InstanceId, Inventory, MigMode, SickGpu, Vitals

WELL = Vitals(recovery_action=0)
GPUS = tuple(make.gpu(minor, vitals=WELL) for minor in range(4))


class Driver:
    """One life of a driver, as far as health goes; another goes on with its folder."""

    def __init__(
        self, folder: Path, *, boot_id: str = "boot-1", now: float = 1000.0, remarks: bool = False
    ) -> None:
        self.folder = folder
        self.now = now
        self.changes = 0
        self.begun: list[tuple[str, str]] = []
        self.tracker = HealthTracker(
            HealthFile(folder, boot_id),
            settle=60,
            ignored_xids=frozenset({119}),
            remarks=remarks,
            clock=lambda: self.now,
            on_change=self._change,
            on_begin=self._begin,
        )

    def _change(self) -> None:
        self.changes += 1

    def _begin(self, _uuid: str, gpu: GpuHealth, one: GpuCondition) -> None:
        self.begun.append((gpu.name, one.finding.value or str(one.finding.cause)))

    def look(self, *gpus: Gpu, sick: tuple[SickGpu, ...] = (), later: float = 30.0) -> Inventory:
        self.now += later
        seen = make.inventory(*(gpus or GPUS), sick=sick)
        self.tracker.look(seen)
        return seen

    def hear(self, gpu: Gpu, xid: int | None, instance: InstanceId | None = None) -> bool:
        return self.tracker.hear(GpuEvent(gpu=gpu.uuid, xid=xid, instance=instance))

    def wrong(self) -> dict[str, list[str]]:
        return {
            uuid: [
                condition.finding.value or str(condition.finding.cause) for condition in conditions
            ]
            for uuid, conditions in self.tracker.in_force().items()
        }


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    driver = Driver(tmp_path)
    driver.look()
    return driver


def lost(gpu: Gpu) -> SickGpu:
    return SickGpu(index=gpu.index, reason="it is lost", is_lost=True)


def test_steady_health_changes_nothing_and_writes_nothing(driver: Driver) -> None:
    for _ in range(5):
        driver.look()
    assert (driver.wrong(), driver.changes, list(driver.folder.iterdir())) == ({}, 0, [])


@pytest.mark.parametrize("xid", [43, 119])
def test_a_remark_is_momentary_and_causes_no_scan(tmp_path: Path, xid: int) -> None:
    driver = Driver(tmp_path, remarks=True)
    driver.look()
    assert not driver.hear(GPUS[1], xid)
    assert driver.wrong() == {GPUS[1].uuid: [str(xid)]}
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        driver.look()
    assert driver.wrong() == {GPUS[1].uuid: [str(xid)]}
    driver.look()
    assert driver.wrong() == {}
    assert driver.changes == 2


def test_a_remark_that_repeats_itself_changes_nothing_more(tmp_path: Path) -> None:
    driver = Driver(tmp_path, remarks=True)
    driver.look()
    with capture_logs() as logs:
        for _ in range(100):
            driver.hear(GPUS[1], 13)
    assert (driver.changes, [line["event"] for line in logs]) == (1, ["xid remarked"])


def test_a_remark_stands_behind_what_is_wrong_and_does_not_come_back_with_it(
    tmp_path: Path,
) -> None:
    driver = Driver(tmp_path, remarks=True)
    driver.look()
    driver.hear(GPUS[1], 43)
    driver.hear(GPUS[1], 62)
    assert driver.wrong() == {GPUS[1].uuid: ["62", "43"]}
    after = Driver(tmp_path, now=driver.now)
    assert after.wrong() == {GPUS[1].uuid: ["62"]}


def test_an_xid_is_of_one_gpu_and_outlasts_the_next_scan(driver: Driver) -> None:
    assert driver.hear(GPUS[2], 62)
    assert driver.wrong() == {GPUS[2].uuid: ["62"]}
    driver.look()
    assert driver.wrong() == {GPUS[2].uuid: ["62"]}
    assert (driver.changes, driver.begun) == (1, [("gpu-2", "62")])


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109, 119])
def test_an_xid_of_a_program_or_one_that_the_admin_ignores_changes_nothing(
    driver: Driver, xid: int
) -> None:
    for _ in range(100):
        assert not driver.hear(GPUS[2], xid)
    assert (driver.wrong(), driver.changes, list(driver.folder.iterdir())) == ({}, 0, [])


def test_other_events_and_xid_154_cause_a_scan(driver: Driver) -> None:
    assert driver.hear(GPUS[2], None)
    assert driver.hear(GPUS[2], 154)
    assert driver.wrong() == {}


def test_many_equal_events_are_one_change_and_one_line(driver: Driver) -> None:
    with capture_logs() as lines:
        for _ in range(100):
            driver.hear(GPUS[2], 62)
    assert driver.changes == 1
    assert [line["event"] for line in lines] == ["gpu sick"]


def test_the_log_line_has_the_cause_and_advice(driver: Driver) -> None:
    with capture_logs() as lines:
        driver.hear(GPUS[2], 79)
    (line,) = lines
    assert (line["device"], line["cause"], line["value"]) == ("gpu-2", "xid", "79")
    assert line["reason"] == "XID 79: the GPU has fallen off the bus"
    assert line["remedy"] == "a reboot of the node"


def test_the_next_driver_knows_and_clears_conditions(driver: Driver) -> None:
    driver.hear(GPUS[2], 62)
    driver.look(*(replace(gpu, vitals=Vitals(recovery_action=1)) for gpu in GPUS[2:3]), *GPUS[:2])
    since = driver.tracker.in_force()[GPUS[2].uuid][0].since
    successor = Driver(driver.folder, now=driver.now)
    assert successor.wrong() == driver.wrong() == {GPUS[2].uuid: ["62", "gpu-reset"]}
    assert successor.tracker.in_force()[GPUS[2].uuid][0].since == since
    successor.look()
    successor.look()
    assert successor.wrong() != {}
    successor.look()
    assert (successor.wrong(), successor.changes) == ({}, 1)


def test_an_admin_clears_the_xids_of_one_gpu(driver: Driver) -> None:
    for gpu in GPUS[1:3]:
        driver.hear(gpu, 62)
    driver.look(*GPUS[:2], replace(GPUS[2], vitals=Vitals(recovery_action=1)), GPUS[3])
    driver.tracker.clear(GPUS[2].uuid)
    assert driver.wrong() == {GPUS[1].uuid: ["62"], GPUS[2].uuid: ["gpu-reset"]}


def test_a_reboot_clears_conditions(driver: Driver) -> None:
    driver.hear(GPUS[2], 62)
    rebooted = Driver(driver.folder, boot_id="boot-2")
    rebooted.look()
    assert rebooted.wrong() == {}


def test_a_lost_gpu_is_published_as_it_was_and_the_same_slices_come_of_it(driver: Driver) -> None:
    before = driver.look()
    seen = driver.look(*GPUS[:1], *GPUS[2:], sick=(lost(GPUS[1]),))
    assert driver.wrong() == {GPUS[1].uuid: ["gpu-lost"]}
    published = driver.tracker.published(seen)
    assert published == before
    assert driver.tracker.published(seen) is published
    for _ in range(3):
        again = driver.look()
    assert driver.wrong() == {}
    assert driver.tracker.published(again) == before


def test_beside_a_lost_gpu_others_are_published_as_they_are_now(driver: Driver) -> None:
    seen = driver.look(*GPUS[:1], *GPUS[2:], sick=(lost(GPUS[1]),))
    assert driver.tracker.published(seen).gpus == GPUS
    changed = replace(GPUS[0], mig_mode=MigMode.ENABLED)
    later = driver.look(changed, *GPUS[2:], sick=(lost(GPUS[1]),))
    assert driver.tracker.published(later).gpus == (changed, *GPUS[1:])
    latest = replace(later, passthrough=(make.passthrough(3),))
    assert driver.tracker.published(latest).passthrough == latest.passthrough
    back = replace(GPUS[1], mig_mode=MigMode.ENABLED)
    driver.look(changed, back, *GPUS[2:])
    assert driver.tracker.published(latest).gpus == (changed, back, *GPUS[2:])


def test_two_gpus_lost_at_once_are_distinguished(driver: Driver) -> None:
    driver.look(GPUS[0], GPUS[3], sick=(lost(GPUS[1]), lost(GPUS[2])))
    assert set(driver.wrong()) == {GPUS[1].uuid, GPUS[2].uuid}


def test_a_gpu_that_is_taken_out_is_not_published_and_not_sick(driver: Driver) -> None:
    seen = driver.look(*GPUS[:3])
    assert driver.tracker.published(seen) == seen
    assert driver.wrong() == {}


@pytest.mark.parametrize("restarts", [False, True])
def test_a_gpu_that_comes_back_has_no_xid(driver: Driver, restarts: bool) -> None:
    """A card without a recovery action (before R565) never says itself that it is well."""
    silent = [replace(gpu, vitals=Vitals()) for gpu in GPUS]
    driver.hear(GPUS[3], 62)
    driver.look(*silent, later=600)
    driver.look(*silent[:3])
    assert driver.wrong() == {GPUS[3].uuid: ["62"]}, "it may be back any time"
    if restarts:
        driver = Driver(driver.folder, now=driver.now)
    driver.look(*silent)
    assert driver.wrong() == {GPUS[3].uuid: ["62"]}, "it takes two looks"
    driver.look(*silent, later=60)
    assert driver.wrong() == {}


def test_a_gpu_that_was_never_described_stays_unknown(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    seen = driver.look(*GPUS[1:], sick=(lost(GPUS[0]),))
    assert driver.tracker.published(seen) == seen
    assert driver.wrong() == {}


def test_a_lost_gpu_is_known_again_by_the_successor(driver: Driver) -> None:
    driver.look(*GPUS[1:], sick=(lost(GPUS[0]),))
    successor = Driver(driver.folder, now=driver.now)
    seen = successor.look(*GPUS[1:], sick=(lost(GPUS[0]),))
    assert successor.wrong() == {GPUS[0].uuid: ["gpu-lost"]}
    assert successor.tracker.published(seen) == seen  # its facts went with the other process


def test_a_scan_without_a_driver_changes_no_gpu(driver: Driver) -> None:
    driver.hear(GPUS[2], 62)
    nothing = Inventory(driver_version=None, cuda_version=None, problem="no driver")
    for _ in range(10):
        driver.now += 60
        driver.tracker.look(nothing)
    assert driver.wrong() == {GPUS[2].uuid: ["62"]}
    assert driver.tracker.published(nothing) is nothing
    seen = driver.look(*GPUS[1:], sick=(lost(GPUS[0]),))
    assert driver.tracker.published(seen).gpus == GPUS, "it is as it was before"


def test_an_event_of_an_instance_is_over_with_the_instance(driver: Driver) -> None:
    device = make.mig_device(0)
    divided = make.gpu(0, mig_mode=MigMode.ENABLED, mig=make.mig(device), vitals=Vitals())
    driver.look(divided, *GPUS[1:])
    driver.hear(divided, 62, InstanceId(gpu_instance=device.gpu_instance))
    driver.look(divided, *GPUS[1:])
    assert driver.wrong() == {divided.uuid: ["62"]}
    driver.look(replace(divided, mig=make.mig(problem="it cannot be listed")), *GPUS[1:])
    assert driver.wrong() == {divided.uuid: ["62"]}
    driver.look(replace(divided, mig=make.mig()), *GPUS[1:])
    assert driver.wrong() == {}


def test_an_event_before_the_first_look_is_of_the_gpu_that_the_look_finds(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.hear(GPUS[1], 62)
    driver.look()
    assert driver.wrong() == {GPUS[1].uuid: ["62"]}
    record = read_health(tmp_path)
    assert record is not None
    assert record.gpus[GPUS[1].uuid].name == "gpu-1"


@pytest.mark.parametrize("xid", [48, 154, 999])
def test_xids_that_no_program_causes_cause_a_scan(driver: Driver, xid: int) -> None:
    assert driver.hear(GPUS[1], xid)


def test_a_gpu_that_is_lost_while_another_one_comes_before_it_is_the_one_that_is_missing() -> None:
    away = {GPUS[1].uuid: GpuHealth(name="", index=1, pci_address=GPUS[1].pci_address)}
    moved = replace(lost(GPUS[1]), index=2)
    assert at_their_places([moved], away) == {GPUS[1].uuid: moved}


def test_the_index_decides_if_more_are_missing_than_sick() -> None:
    away = {
        gpu.uuid: GpuHealth(name="", index=gpu.index, pci_address=gpu.pci_address)
        for gpu in GPUS[1:]
    }
    assert at_their_places([lost(GPUS[2])], away) == {GPUS[2].uuid: lost(GPUS[2])}
    assert at_their_places([lost(make.gpu(9))], away) == {}


def test_a_gpu_known_only_by_events_has_no_position(driver: Driver) -> None:
    driver.look(*GPUS[1:], sick=(lost(GPUS[0]),))
    successor = Driver(driver.folder, now=driver.now)
    successor.hear(GPUS[1], 62)
    successor.look(*GPUS[2:], sick=(lost(GPUS[0]), lost(GPUS[1])))
    assert successor.wrong() == {GPUS[0].uuid: ["gpu-lost"], GPUS[1].uuid: ["62"]}
