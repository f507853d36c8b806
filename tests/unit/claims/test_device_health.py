"""How a device of a claim is doing, and in which words."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

import make
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.claims.report.device_health import (
    WELL,
    DeviceHealth,
    Gone,
    HealthState,
    gone_devices,
    health_of,
    reported,
)
from dra_driver.devices.device import Device
from dra_driver.devices.health import findings
from dra_driver.devices.health.debounce import GpuCondition, GpuConditions
from dra_driver.devices.health.findings import Finding
from dra_driver.devices.model import InstanceId, Inventory, MigDevice, SickGpu
from dra_driver.devices.shares import ConsumedShare, ShareStrategy

MIG_FOUND = make.mig_device(0, "1g.10gb", 2)
OTHER_FOUND = make.mig_device(0, "2g.20gb", 4)
CARD, GPU = make.gpu(0, mig=make.mig(MIG_FOUND, OTHER_FOUND)), make.gpu(1)
NODE = make.inventory(CARD, GPU)
MIG, OTHER = make.device(MIG_FOUND), make.device(OTHER_FOUND)
DIVIDED, WHOLE = make.device(CARD), make.device(GPU)
SHARE = replace(
    MIG, share=ConsumedShare(strategy=ShareStrategy.TIME_SLICING, memory_mib=1024, share_id="s")
)


def conditions(*findings: Finding, of: InstanceId | None = None) -> GpuConditions:
    return tuple(GpuCondition(finding=finding, instance=of, since=7) for finding in findings)


def health(device: Device, wrong: Mapping[str, GpuConditions], **facts: object) -> DeviceHealth:
    return health_of(device, replace(NODE, **facts), wrong)


def test_a_healthy_device_has_no_message() -> None:
    for device in (WHOLE, MIG, SHARE):
        assert health(device, {}) == WELL
    assert WELL.message == ""


def test_a_problem_is_a_sentence_with_a_remedy() -> None:
    found = health(WHOLE, {GPU.uuid: conditions(findings.XIDS[79])})
    assert found == DeviceHealth(
        state=HealthState.UNHEALTHY,
        reason="Xid79",
        message="XID 79: the GPU has fallen off the bus; remedy: a reboot of the node",
    )


def test_all_problems_are_listed_the_most_severe_first() -> None:
    wrong = conditions(findings.XIDS[79], findings.LOST, findings.ROWS_PENDING)
    found = health(WHOLE, {GPU.uuid: wrong})
    first, second, third = found.message.split(". ")
    assert (first[:6], second[:3], third[:3]) == ("XID 79", "The", "Bad")
    assert found.reason == "Xid79"


@pytest.mark.parametrize(
    ("finding", "reason"),
    [
        (findings.LOST, "GpuLost"),
        (findings.ROWS_FAILED, "RowRemapFailed"),
        (findings.UNKNOWN_ACTION, "RecoveryActionUnknown"),
        (findings.SILENT, "Unresponsive"),
    ],
)
def test_the_reason_is_a_word_as_conditions_have_it(finding: Finding, reason: str) -> None:
    assert health(WHOLE, {GPU.uuid: conditions(finding)}).reason == reason


def test_a_warning_leaves_a_device_healthy() -> None:
    found = health(WHOLE, {GPU.uuid: conditions(findings.ROWS_PENDING)})
    assert (found.state, found.reason) == (HealthState.HEALTHY, "RowRemapPending")
    assert found.message.startswith("Bad memory of the GPU")


def test_a_remark_concerns_only_the_gpu() -> None:
    remark = findings.remark(43, is_ignored=False)
    assert health(WHOLE, {GPU.uuid: conditions(remark)}) == WELL
    both = health(WHOLE, {GPU.uuid: conditions(findings.ROWS_PENDING, remark)})
    assert "43" not in both.message


def test_a_mig_instances_condition_is_only_its_own() -> None:
    mine = InstanceId(gpu_instance=MIG_FOUND.gpu_instance)
    wrong = {CARD.uuid: conditions(findings.XIDS[62], of=mine)}
    assert health(MIG, wrong).reason == "Xid62"
    assert health(SHARE, wrong).reason == "Xid62"
    assert health(OTHER, wrong) == WELL
    assert health(WHOLE, wrong) == WELL


def test_a_gpus_condition_applies_to_all_its_parts() -> None:
    wrong = {CARD.uuid: conditions(findings.XIDS[62])}
    assert {health(one, wrong).reason for one in (MIG, OTHER, SHARE, DIVIDED)} == {"Xid62"}


def test_without_the_driver_only_earlier_faults_are_known() -> None:
    wrong = {CARD.uuid: conditions(findings.XIDS[62])}
    found = health(WHOLE, wrong, gpus=(), problem="libnvidia-ml.so.1 is missing")
    assert (found.state, found.reason) == (HealthState.UNKNOWN, "DriverUnavailable")
    assert "libnvidia-ml.so.1 is missing" in found.message
    assert health(DIVIDED, wrong, gpus=(), problem="gone").reason == "Xid62"


def test_a_missing_gpu_is_unhealthy() -> None:
    gone = health(WHOLE, {}, gpus=(CARD,))
    assert (gone.state, gone.reason) == (HealthState.UNHEALTHY, "GpuMissing")
    assert "removed from the machine" in gone.message
    sick = (SickGpu(index=1, reason="it is lost"),)
    assert "at index 1: it is lost" in health(WHOLE, {}, gpus=(CARD,), sick=sick).message


def test_a_missing_mig_device_and_its_shares_are_unhealthy() -> None:
    def gone(device: Device, wrong: Mapping[str, GpuConditions]) -> DeviceHealth:
        return health_of(device, NODE, wrong, is_gone=device.base != OTHER.base)

    found = gone(MIG, {})
    assert (found.state, found.reason) == (HealthState.UNHEALTHY, "MigDeviceMissing")
    assert found.message == (
        f"{MIG_FOUND.uuid} (1g.10gb of {CARD.uuid}) no longer exists: its GPU was reset, or "
        "something destroyed it; delete the pods that have it, so that they get a new one"
    )
    assert gone(SHARE, {}) == found
    assert {gone(one, {}) for one in (OTHER, WHOLE, DIVIDED)} == {WELL}
    sick = gone(MIG, {CARD.uuid: conditions(findings.XIDS[62])})
    assert sick.reason == "MigDeviceMissing"
    assert sick.message.startswith(f"{found.message}. XID 62: ")


def machine(*devices: MigDevice, problem: str | None = None) -> Inventory:
    return make.inventory(make.gpu(0, mig=replace(make.mig(*devices), problem=problem)))


def lost(record: ClaimRecord, inventory: Inventory, before: Gone | None = None) -> Gone:
    return gone_devices([record], inventory, before or {})


def test_a_device_is_gone_until_a_scan_finds_it() -> None:
    both = claim(("one", MIG), ("other", OTHER), ("whole", DIVIDED))
    assert lost(both, machine(MIG_FOUND, OTHER_FOUND)) == {}
    before = lost(both, machine(OTHER_FOUND))
    assert before == {(both.ref.uid, MIG_FOUND.uuid): both}
    assert lost(both, machine(MIG_FOUND, OTHER_FOUND), before) == {}
    assert lost(claim(("share", SHARE)), machine()).keys() == before.keys()


def test_an_inconclusive_scan_changes_nothing() -> None:
    mine = claim(("one", MIG))
    before = lost(mine, machine())
    for found in (
        machine(problem="its MIG devices keep changing"),
        make.inventory(GPU),
        replace(make.inventory(), gpus=(), problem="no GPU driver"),
    ):
        assert lost(mine, found, before) == before
        assert lost(mine, found) == {}


def test_a_gpu_whose_mig_mode_is_off_has_no_mig_devices() -> None:
    assert lost(claim(("one", MIG)), make.inventory(make.gpu(0))) != {}


def test_a_lost_device_does_not_affect_the_next_claim() -> None:
    before = lost(claim(("one", MIG)), machine())
    again = claim(("one", MIG))
    assert lost(again, machine(problem="its MIG devices keep changing"), before) == {}


def test_a_long_message_is_cut_between_characters() -> None:
    found = health(WHOLE, {}, gpus=(), problem="é" * 2000)
    assert 1020 <= len(found.message.encode()) <= 1024
    assert found.message.endswith("é...")


def claim(*devices: tuple[str, Device]) -> ClaimRecord:
    (entry,) = make.record(GPU).devices
    return make.record(
        devices=tuple(replace(entry, name=name, device=one) for name, one in devices)
    )


def test_each_device_is_reported_once_with_the_worst_of_it() -> None:
    def judge(_: ClaimRecord, device: Device) -> DeviceHealth:
        return health_of(device, NODE, {GPU.uuid: conditions(findings.XIDS[79])})

    records = [claim(("gpu-9", MIG), ("gpu-1", WHOLE)), claim(("gpu-9", WHOLE), ("gpu-0", MIG))]
    found = {device: health.reason for (_, device), health in reported(records, judge).items()}
    assert found == {"gpu-0": "Well", "gpu-1": "Xid79", "gpu-9": "Xid79"}
