"""Claims on MIG devices: found, made on demand, given back; on a simulated node's real NVML."""

import os

import pytest
import structlog

import make
from dra_driver.claims.model.record import RecordState
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from dra_driver.devices.model import MigDevice
from dra_driver.errors import ConfigError, ConflictError, DeviceError, DriverError, TransientError
from worlds.configs import MPS_ON_MIG
from worlds.driver import FAST
from worlds.node import MakeNode, Node

UNKNOWN_ERROR = 999
SOON = 0.3


# Made on demand


def test_a_mig_device_is_made_for_a_claim_and_destroyed_after_it(node: Node) -> None:
    ref = node.claim(node.name("1g.10gb", 3))
    (device,) = node.driver.prepare(ref)
    assert device.name == node.name("1g.10gb", 3)
    assert (node.mig_shapes(), node.mig_modes()) == ({0: ["1g.10gb@3"]}, {0: 1})
    (made,) = node.migs()
    assert node.driver.nodes(ref) == [
        f"/dev/nvidia0-gi{made.gpu_instance}-ci{made.compute_instance}"
    ]
    record = node.driver.claims.ledger.read(ref.uid)
    assert record is not None
    assert [one.device.uuid for one in record.devices] == [made.uuid]
    node.driver.unprepare(ref)
    assert node.left() == []


def test_a_mig_device_is_recorded_before_and_after_its_making(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[dict[int, list[str]]] = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(node.mig_shapes()))
    node.driver.prepare(node.claim(node.name("1g.10gb", 3)))
    file_and_folder = 2
    assert synced == [{}] * file_and_folder + [{0: ["1g.10gb@3"]}] * file_and_folder


def test_four_mig_devices_of_one_claim_are_made_on_one_gpu(node: Node) -> None:
    wanted = [("1g.10gb", 0), ("1g.10gb", 1), ("2g.20gb", 2), ("3g.40gb", 4)]
    ref = node.claim(*(node.name(*one) for one in wanted))
    assert len(node.driver.prepare(ref)) == 4
    assert node.mig_shapes() == {0: [f"{profile}@{start}" for profile, start in wanted]}
    node.driver.unprepare(ref)
    assert node.left() == []


def test_claims_with_parts_of_one_gpu_come_and_go_each_by_itself(node: Node) -> None:
    one, two = (node.claim(node.name("1g.10gb", start), name=f"c{start}") for start in (0, 1))
    node.driver.prepare(one)
    node.driver.prepare(two)
    node.driver.unprepare(one)
    assert (node.mig_shapes(), node.mig_modes()) == ({0: ["1g.10gb@1"]}, {0: 1})
    node.driver.unprepare(two)
    assert node.left() == []


def test_a_repeated_prepare_gives_the_same_answer_and_touches_nothing(node: Node) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    answer = node.driver.prepare(ref)
    node.machine.fail_call("nvmlDeviceCreateGpuInstanceWithPlacement", UNKNOWN_ERROR)
    assert node.driver.prepare(ref) == answer


def test_partitions_and_the_whole_gpu_exclude_each_other(node: Node) -> None:
    part, whole = node.claim(node.name("1g.10gb", 0)), node.claim("gpu-0", name="whole")
    node.driver.prepare(part)
    with pytest.raises(ConflictError, match="already allocated to different claim default/claim"):
        node.driver.prepare(whole)
    node.driver.unprepare(part)
    node.driver.prepare(whole)
    with pytest.raises(ConflictError, match="already allocated to different claim default/whole"):
        node.driver.prepare(part)
    node.driver.unprepare(whole)
    assert node.left() == []


def test_overlapping_partitions_exclude_each_other(node: Node) -> None:
    small = node.claim(node.name("1g.10gb", 1))
    large = node.claim(node.name("3g.40gb", 0), name="large")
    node.driver.prepare(small)
    with pytest.raises(ConflictError, match="already allocated to different claim"):
        node.driver.prepare(large)
    assert node.mig_shapes() == {0: ["1g.10gb@1"]}


def test_the_mode_stays_on_where_others_had_turned_it_on(node: Node) -> None:
    node.machine.set_mig_mode(node.uuid(0), enabled=True)
    node.look()
    ref = node.claim(node.name("1g.10gb", 0))
    node.driver.prepare(ref)
    node.driver.unprepare(ref)
    assert (node.mig_shapes(), node.mig_modes()) == ({}, {0: 1})


@pytest.mark.parametrize(
    "places",
    [
        {"7g.40gb": 0},
        {"3g.20gb": 4, "4g.20gb": 0},
        {"2g.10gb": 0, "1g.10gb": 2, "1g.5gb": 6, "1g.5gb+me": 5},
    ],
    ids=["whole", "halves", "small ones"],
)
def test_an_ampere_gpu_in_mig_mode_is_divided_into_any_profile_and_stays_in_it(
    make_node: MakeNode, places: dict[str, int]
) -> None:
    node = make_node("a100x8")
    node.machine.set_mig_mode(node.uuid(0), enabled=True)
    node.machine.reset_gpu(node.uuid(0))
    node.look()
    ref = node.claim(*(node.name(profile, start) for profile, start in places.items()))
    node.driver.prepare(ref)
    made = sorted(f"{profile}@{start}" for profile, start in places.items())
    assert node.mig_shapes() == {0: made}
    node.driver.unprepare(ref)
    assert (node.mig_shapes(), node.mig_modes()) == ({}, {0: 1})


def test_an_ampere_gpu_with_mig_off_is_not_divided(make_node: MakeNode) -> None:
    node = make_node("a100x8")
    ref = node.claim("gpu-0-mig-1g5gb-19-0")
    with pytest.raises(DeviceError, match="this card changes it only by a reset"):
        node.driver.prepare(ref)
    assert node.left() == []


def test_mode_is_turned_off_for_a_whole_gpu_and_on_again_after_it(node: Node) -> None:
    node.machine.set_mig_mode(node.uuid(0), enabled=True)
    node.look()
    ref = node.claim("gpu-0")
    node.driver.prepare(ref)
    assert node.mig_modes() == {}
    node.driver.unprepare(ref)
    assert node.mig_modes() == {0: 1}


# What cannot be made


@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceSetMigMode",
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceCreateComputeInstance",
        "nvmlComputeInstanceGetInfo_v2",
    ],
)
def test_a_failed_prepare_is_rolled_back_completely(node: Node, call: str) -> None:
    ref = node.claim(node.name("1g.10gb", 0), node.name("1g.10gb", 1))
    node.machine.fail_call(call, UNKNOWN_ERROR)
    with pytest.raises(DeviceError, match="NVML refused"):
        node.driver.prepare(ref)
    node.machine.clear_faults()
    assert node.left() == []
    node.driver.prepare(ref)
    node.driver.unprepare(ref)
    assert node.left() == []


def test_a_device_without_cdi_edits_is_destroyed(node: Node) -> None:
    ref = node.claim(node.name("1g.10gb", 0))

    def refuse(*_: object) -> None:
        raise DeviceError("no such node")

    node.driver.gpus.device = refuse  # type: ignore[method-assign,assignment]
    with pytest.raises(DeviceError, match="no such node"):
        node.driver.prepare(ref)
    assert node.left() == []


def test_a_wrong_config_is_refused_before_anything_is_made(node: Node) -> None:
    limits = {"defaultPerDevicePinnedMemoryLimit": {"1": "1Gi"}}
    config = make.config(kind="MigDeviceConfig", sharing={"strategy": "MPS", "mpsConfig": limits})
    node.machine.fail_call("nvmlDeviceCreateGpuInstanceWithPlacement", UNKNOWN_ERROR)
    ref = node.claim(node.name("1g.10gb", 0), configs=[config])
    strategies = node.driver.sharing
    strategies.refuse_plan = ConfigError("invalid device index: 1")
    with pytest.raises(ConfigError, match="invalid device index"):
        node.driver.prepare(ref)
    assert node.left() == []


def test_a_config_for_whole_gpus_that_names_a_mig_request_is_refused(node: Node) -> None:
    ref = node.claim(node.name("1g.10gb", 0), configs=[make.config("gpu", sharing=None)])
    with pytest.raises(ConfigError, match=r'cannot apply GpuConfig to device .* of type "mig"'):
        node.driver.prepare(ref)
    assert node.left() == []


def test_a_place_that_another_program_took_is_waited_for(node: Node) -> None:
    node.machine.set_mig_mode(node.uuid(0), enabled=True)
    node.machine.create_mig(node.uuid(0), "3g.40gb", 0)
    ref = node.claim(node.name("1g.10gb", 1))
    with pytest.raises(TransientError, match=r"there is no room for 1g\.10gb"):
        node.driver.prepare(ref, SOON)
    assert node.mig_shapes() == {0: ["3g.40gb@0"]}


# Sharing


def test_sharing_is_set_on_the_mig_device_that_was_made(node: Node) -> None:
    steps: list[str] = []
    node.restart(step=steps.append)
    ref = node.claim(node.name("1g.10gb", 0), configs=[MPS_ON_MIG])
    node.driver.prepare(ref)
    (made,) = node.migs()
    changes = [step for step in steps if step in ("intended", "made", "applied", "recorded")]
    assert changes == ["intended", "made", "applied", "recorded"], "written once, before them all"
    assert node.driver.shared == [made.uuid]
    env = node.driver.spec(ref)["devices"][0]["containerEdits"]["env"]
    assert env == [f"MPS={ref.uid}"]
    node.driver.unprepare(ref)
    assert node.left() == []


def test_sharing_that_fails_takes_the_mig_device_with_it(node: Node) -> None:
    ref = node.claim(node.name("1g.10gb", 0), configs=[MPS_ON_MIG])
    node.driver.sharing.refuse_apply = DeviceError("no daemon")
    with pytest.raises(DeviceError, match="no daemon"):
        node.driver.prepare(ref)
    assert node.left() == []


def test_a_mig_device_outlives_the_sharing_on_it(node: Node) -> None:
    node.restart(survives_reboot=True)
    ref = node.claim(node.name("1g.10gb", 0), configs=[MPS_ON_MIG])
    node.driver.prepare(ref)
    node.driver.sharing.refuse_undo = TransientError("the daemon has not ended")
    node.driver.unprepare(ref)
    assert node.mig_shapes() == {0: ["1g.10gb@0"]}
    with pytest.raises(TransientError, match="the daemon has not ended"):
        node.driver.prepare(node.claim(node.name("1g.10gb", 0), name="next"), SOON)
    node.driver.sharing.refuse_undo = None
    assert node.driver.reconciler(ReconcileTiming()).mend() == set()
    assert node.left() == []


# Admin access


def test_admin_access_sees_a_mig_device_and_changes_nothing(node: Node) -> None:
    name = node.name("1g.10gb", 0)
    admin = node.claim(name, name="admin")
    node.driver.api.results(admin)[0]["adminAccess"] = True
    with pytest.raises(TransientError, match="does not make it"):
        node.driver.prepare(admin, SOON)
    ref = node.claim(name)
    node.driver.prepare(ref)
    node.driver.prepare(admin)
    assert node.driver.nodes(admin) == node.driver.nodes(ref)
    node.driver.unprepare(admin)
    assert node.mig_shapes() == {0: ["1g.10gb@0"]}
    node.driver.unprepare(ref)
    assert node.left() == []


# Held, removed, rebooted


def test_a_held_mig_device_keeps_the_pod_until_its_release(node: Node) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    node.driver.prepare(ref)
    (made,) = node.migs()
    node.machine.hold_instance(made.uuid)
    with pytest.raises(TransientError, match=r"cannot be unprepared yet: .*processes still use it"):
        node.driver.unprepare(ref, SOON)
    assert not node.driver.specs.exists(ref.uid)
    newcomer = node.claim(node.name("1g.20gb", 0), name="newcomer")
    with pytest.raises(TransientError, match="MIG of an earlier claim has not ended"):
        node.driver.prepare(newcomer, SOON)
    beside = node.claim(node.name("1g.10gb", 2), name="beside")
    node.driver.prepare(beside)
    node.machine.release_instance(made.uuid)
    node.driver.unprepare(ref)
    node.driver.unprepare(beside)
    node.driver.prepare(newcomer)
    node.driver.unprepare(newcomer)
    assert node.left() == []


def test_a_held_mig_device_is_destroyed_by_the_reconciler_later(node: Node) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    node.driver.prepare(ref)
    (made,) = node.migs()
    node.machine.hold_instance(made.uuid)
    with pytest.raises(TransientError):
        node.driver.unprepare(ref, SOON)
    reconciler = node.driver.reconciler(ReconcileTiming())
    assert reconciler.mend() == {ref.uid}
    node.machine.release_instance(made.uuid)
    assert reconciler.mend() == set()
    assert node.left() == []


def test_a_lasting_nvml_refusal_does_not_keep_the_pod(node: Node) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    node.driver.prepare(ref)
    node.machine.fail_call("nvmlGpuInstanceDestroy", UNKNOWN_ERROR)
    node.driver.unprepare(ref)
    record = node.driver.claims.ledger.read(ref.uid)
    assert record is not None
    assert record.state is RecordState.RELEASED
    with pytest.raises(TransientError, match="has not ended"):
        node.driver.prepare(node.claim(node.name("1g.10gb", 0), name="next"), SOON)
    node.machine.clear_faults()
    assert node.driver.reconciler(ReconcileTiming()).mend() == set()
    assert node.left() == []


def test_a_mig_device_removed_behind_our_back_is_made_again(node: Node) -> None:
    ref = node.claim(node.name("1g.10gb", 0), node.name("1g.10gb", 1))
    answer = node.driver.prepare(ref)
    node.machine.destroy_mig(node.migs()[0].uuid)
    assert node.driver.prepare(ref) == answer
    assert node.mig_shapes() == {0: ["1g.10gb@0", "1g.10gb@1"]}
    node.driver.unprepare(ref)
    assert node.left() == []


def test_a_mig_device_removed_behind_our_back_is_unprepared(node: Node) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    node.driver.prepare(ref)
    node.machine.destroy_mig(node.migs()[0].uuid)
    node.driver.unprepare(ref)
    assert node.left() == []


def test_after_a_reboot_the_claim_gets_its_mig_device_again(node: Node) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    node.driver.prepare(ref)
    node.machine.reboot()
    node.restart()
    assert node.driver.reconciler(ReconcileTiming()).mend() == set()
    assert node.mig_shapes() == {}
    node.driver.prepare(ref)
    assert node.mig_shapes() == {0: ["1g.10gb@0"]}
    node.driver.unprepare(ref)
    assert node.left() == []


def test_after_a_reboot_others_devices_are_kept(node: Node) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    node.driver.prepare(ref)
    node.machine.reboot()
    node.machine.set_mig_mode(node.uuid(0), enabled=True)
    node.machine.create_mig(node.uuid(0), "1g.10gb", 0)
    node.restart()
    node.driver.unprepare(ref)
    assert node.mig_shapes() == {0: ["1g.10gb@0"]}


def test_a_mig_device_with_a_damaged_record_is_left_to_an_admin(node: Node) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    node.driver.prepare(ref)
    (record,) = (node.driver.plugin / "claims").iterdir()
    record.write_bytes(record.read_bytes()[:-9])
    assert node.driver.reconciler(ReconcileTiming()).mend() == {ref.uid}
    node.driver.unprepare(ref)
    assert (node.mig_shapes(), node.mig_modes()) == ({0: ["1g.10gb@0"]}, {0: 1})
    beside = node.claim(node.name("1g.10gb", 2), name="beside")
    node.driver.prepare(beside)
    with pytest.raises(TransientError, match="there is no room"):
        node.driver.prepare(node.claim(node.name("1g.20gb", 0), name="next"), SOON)
    node.driver.unprepare(beside)
    assert node.mig_shapes() == {0: ["1g.10gb@0"]}


def test_a_mode_that_stays_on_blocks_nobody_and_is_retried(node: Node) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    node.driver.prepare(ref)
    node.machine.fail_call("nvmlDeviceSetMigMode", UNKNOWN_ERROR)
    node.driver.unprepare(ref)
    assert (node.mig_shapes(), node.mig_modes()) == ({}, {0: 1})
    node.machine.clear_faults()
    node.driver.reconciler(ReconcileTiming()).mend_unfinished()
    assert node.left() == []


def test_a_mode_that_cannot_be_turned_off_is_logged_once(node: Node) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    node.driver.prepare(ref)
    node.machine.fail_call("nvmlDeviceSetMigMode", UNKNOWN_ERROR)
    reconciler = node.driver.reconciler(ReconcileTiming())
    with structlog.testing.capture_logs() as said:
        node.driver.unprepare(ref)
        for _ in range(3):
            reconciler.mend_unfinished()
    assert [one["event"] for one in said].count("step not undone") == 1


def test_instances_made_here_are_known_as_such_in_the_inventory(node: Node) -> None:
    node.driver.prepare(node.claim(node.name("1g.10gb", 0)))
    node.machine.create_mig(node.uuid(0), "1g.10gb", 4)
    node.look()
    mig = node.gpu().mig
    assert mig is not None
    devices = [instance for instance in mig.instances if isinstance(instance, MigDevice)]
    assert [(device.placement.start, device.made_here) for device in devices] == [
        (0, True),
        (4, False),
    ]


def test_errors_are_of_the_drivers_own_tree_while_nvml_is_closed(node: Node) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    node.session.close()
    with pytest.raises(DriverError, match="the GPU driver is not open"):
        node.driver.prepare(ref, FAST.longest_pause)
    node.look()
    node.driver.prepare(ref)
