"""What is wrong with GPUs, as taints of the devices concerned and of no other."""

import pytest

import make
from dra_driver.devices.device import Mig, NodeDevice
from dra_driver.devices.health import findings
from dra_driver.devices.health.debounce import GpuCondition, GpuConditions
from dra_driver.devices.health.findings import Finding, Severity
from dra_driver.devices.model import Gpu, InstanceId, MigMode
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.slices import taints as taints_module
from dra_driver.slices.offer.shares import ShareOffer
from dra_driver.slices.pool import build_slices
from dra_driver.slices.project import Projection, projection
from dra_driver.slices.taints import MOST_TAINTS, Effect, Effects, conditions_of, without_taints

SICK, FINE = make.gpu(0), make.gpu(1)
LOST = GpuCondition(finding=findings.XIDS[79], since=1_770_000_000)
HOT = GpuCondition(finding=findings.SLOWDOWNS[0x40], since=1_770_000_000)


USUAL: Effects = {
    Severity.REMARK: Effect.OFF,
    Severity.WARNING: Effect.OFF,
    Severity.FAULT: Effect.NO_SCHEDULE,
    Severity.LOSS: Effect.NO_SCHEDULE,
}


def tainted(
    found: Projection, *conditions: GpuCondition, gpu: Gpu = SICK, **effects: Effect
) -> Projection:
    """Return it with what one GPU has; the effects are the usual ones unless a test says so."""
    changed = {Severity(name): effect for name, effect in effects.items()}
    return taints_module.tainted(found, {gpu.uuid: conditions}, {**USUAL, **changed})


def taints(found: Projection) -> dict[str, list[dict[str, object]]]:
    return {
        str(device["name"]): device["taints"]  # type: ignore[misc]
        for device in found.devices
        if "taints" in device
    }


def divided_gpu(minor: int = 0) -> Gpu:
    """A GPU in MIG mode with two MIG devices that others made."""
    devices = (make.mig_device(minor), make.mig_device(minor, "2g.20gb", 2))
    return make.gpu(minor, mig_mode=MigMode.ENABLED, mig=make.mig(*devices))


def test_a_sick_gpu_has_a_taint_with_cause_and_time() -> None:
    found = tainted(projection(make.inventory(SICK, FINE)), LOST)
    assert taints(found) == {
        "gpu-0": [
            {
                "key": "gpu.nvidia.com/xid",
                "value": "79",
                "effect": "NoSchedule",
                "timeAdded": "2026-02-02T02:40:00Z",
            }
        ]
    }


def test_the_others_are_published_to_the_byte_as_before() -> None:
    before = projection(make.inventory(SICK, FINE))
    after = tainted(before, LOST)
    assert [device for device in after.devices if device["name"] != "gpu-0"] == [
        device for device in before.devices if device["name"] != "gpu-0"
    ]
    assert taints_module.tainted(before, {}, USUAL) is before


def test_a_value_that_says_nothing_more_is_left_out() -> None:
    lost = GpuCondition(finding=findings.LOST, since=0)
    (taint,) = taints(tainted(projection(make.inventory(SICK)), lost))["gpu-0"]
    assert set(taint) == {"key", "effect", "timeAdded"}
    assert taint["key"] == "gpu.nvidia.com/gpu-lost"


@pytest.mark.parametrize("finding", make.findings(), ids=lambda one: f"{one.cause}-{one.value}")
def test_by_default_what_needs_somebody_keeps_pods_away_and_a_warning_changes_nothing(
    finding: Finding,
) -> None:
    found = tainted(projection(make.inventory(SICK)), GpuCondition(finding=finding, since=0))
    if finding.severity is Severity.WARNING:
        assert taints(found) == {}
    else:
        assert [one["effect"] for one in taints(found)["gpu-0"]] == ["NoSchedule"]


@pytest.mark.parametrize("effect", Effect)
def test_each_severity_has_the_effect_that_is_set_for_it(effect: Effect) -> None:
    found = tainted(projection(make.inventory(SICK)), LOST, HOT, warning=effect)
    effects = [one["effect"] for one in taints(found)["gpu-0"]]
    assert effects == ["NoSchedule", *([] if effect is Effect.OFF else [str(effect)])]


def test_a_remark_has_a_taint_where_that_is_set_and_gives_way_to_what_is_wrong() -> None:
    remark = GpuCondition(finding=findings.remark(43, is_ignored=False), since=0)
    gpu = projection(make.inventory(SICK))
    assert taints(tainted(gpu, remark)) == {}
    (taint,) = taints(tainted(gpu, remark, remark=Effect.NONE))["gpu-0"]
    assert (taint["key"], taint["value"], taint["effect"]) == ("gpu.nvidia.com/xid", "43", "None")
    (taint,) = taints(tainted(gpu, LOST, remark, remark=Effect.NONE))["gpu-0"]
    assert (taint["value"], taint["effect"]) == ("79", "NoSchedule")


def test_the_most_severe_finding_of_a_cause_comes_first() -> None:
    conditions = (LOST, GpuCondition(finding=findings.XIDS[62], since=1))
    (taint,) = taints(tainted(projection(make.inventory(SICK)), *conditions))["gpu-0"]
    assert taint["value"] == "79"


def test_all_causes_at_once_are_no_more_than_the_api_allows() -> None:
    each = [GpuCondition(finding=one, since=0) for one in make.findings()]
    everything = dict.fromkeys(("warning", "fault", "loss"), Effect.NO_EXECUTE)
    found = tainted(projection(make.inventory(SICK)), *each, **everything)
    keys = [one["key"] for one in taints(found)["gpu-0"]]
    assert len(keys) == len(set(keys)) <= MOST_TAINTS


def test_a_gpu_is_sick_with_all_its_partitions_and_shares() -> None:
    gpu = divided_gpu()
    division = Division(
        strategy=ShareStrategy.TIME_SLICING,
        count=2,
        served_as="nvidia.com/gpu.shared",
        combines=False,
    )
    for share in (ShareOffer(), ShareOffer(divisions={make.place(FINE): division})):
        found = projection(make.inventory(gpu, FINE), share=share)
        for one in (gpu, FINE):
            names = {
                str(device["name"])
                for device, source in zip(found.devices, found.sources, strict=True)
                if source.gpu.uuid == one.uuid
            }
            assert len(names) >= 1
            assert set(taints(tainted(found, LOST, gpu=one))) == names


def test_a_mig_devices_condition_taints_it_alone() -> None:
    gpu = divided_gpu()
    assert gpu.mig is not None
    mine, *others = gpu.mig.instances
    assert others
    condition = GpuCondition(
        finding=findings.XIDS[62], since=0, instance=InstanceId(gpu_instance=mine.gpu_instance)
    )
    found = projection(make.inventory(gpu, FINE))
    assert len(found.devices) > 2
    tainted_names = set(taints(tainted(found, condition, gpu=gpu)))
    assert tainted_names == {
        str(device["name"])
        for device, source in zip(found.devices, found.sources, strict=True)
        if isinstance(source.device.base, Mig) and source.device.base.slot == mine.slot
    }
    assert len(tainted_names) == 1


def test_without_taints_nothing_of_a_sick_gpu_is_published_and_nothing_hangs_in_the_air() -> None:
    gpu = divided_gpu()
    found = tainted(projection(make.inventory(gpu, FINE)), LOST, gpu=gpu)
    left = without_taints(found)
    assert [device["name"] for device in left.devices] == ["gpu-1"]
    assert len(left.sources) == 1
    (withheld,) = left.withheld
    assert withheld.index == gpu.index
    assert withheld.reason.startswith("it is sick (gpu.nvidia.com/xid), and the API server")
    assert withheld.reason.endswith("and the scheduler, then restart this driver")
    build_slices(left.devices, driver="d", node_name="n", counter_sets=left.counter_sets)
    assert left.counter_sets == ()


def test_a_gpu_of_which_one_mig_device_is_sick_is_left_out_as_a_whole() -> None:
    gpu = divided_gpu()
    assert gpu.mig is not None
    condition = GpuCondition(
        finding=findings.XIDS[62],
        since=0,
        instance=InstanceId(gpu_instance=gpu.mig.instances[0].gpu_instance),
    )
    found = tainted(projection(make.inventory(gpu, FINE)), condition, gpu=gpu)
    assert [device["name"] for device in without_taints(found).devices] == ["gpu-1"]


def test_without_taints_a_mere_remark_is_dropped_and_the_device_stays() -> None:
    found = tainted(projection(make.inventory(SICK)), HOT, warning=Effect.NONE)
    assert taints(found)
    assert without_taints(found).devices == projection(make.inventory(SICK)).devices


def test_conditions_are_looked_up_by_device() -> None:
    gpu = divided_gpu()
    assert gpu.mig is not None
    mine, other = gpu.mig.instances[:2]
    of_one = GpuCondition(
        finding=findings.XIDS[62], since=0, instance=InstanceId(gpu_instance=mine.gpu_instance)
    )
    both: GpuConditions = (LOST, of_one)
    assert conditions_of(NodeDevice(gpu=gpu, device=make.device(mine)), both) == both
    assert conditions_of(NodeDevice(gpu=gpu, device=make.device(other)), both) == (LOST,)
    assert conditions_of(make.whole(gpu), both) == (LOST,)
    assert gpu.mig_mode is MigMode.ENABLED
