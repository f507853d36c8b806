"""Claims on MIG devices: found, made on demand, given back; on a simulated node's real NVML."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import make
from claims_world import FAST
from dra_driver.claims.reconcile import ReconcileTiming
from dra_driver.claims.record import RecordState
from dra_driver.devices.model import MigDevice
from dra_driver.errors import (
    ConfigError,
    ConflictError,
    DeviceError,
    DriverError,
    TransientError,
)
from mig_world import MPS_ON_MIG, MigNode

UNKNOWN_ERROR = 999
SOON = 0.3


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[[str], MigNode]]:
    made: list[MigNode] = []

    def make_one(profile: str) -> MigNode:
        made.append(MigNode.create(tmp_path / f"node{len(made)}", profile))
        return made[-1]

    yield make_one
    for node in made:
        node.close()


@pytest.fixture
def node(make_node: Callable[[str], MigNode]) -> MigNode:
    return make_node("h100x8")


# Made on demand


def test_a_mig_device_is_made_for_a_claim_and_destroyed_after_it(node: MigNode) -> None:
    ref = node.claim(node.name("1g.10gb", 3))
    (device,) = node.world.prepare(ref)
    assert device.device_name == node.name("1g.10gb", 3)
    assert (node.shapes(), node.mode()) == (["1g.10gb@3"], 1)
    (made,) = node.there()
    minor = node.gpu().minor
    assert node.world.nodes(ref) == [
        f"/dev/nvidia{minor}-gi{made.gpu_instance}-ci{made.compute_instance}"
    ]
    record = node.world.claims.records.read(ref.uid)
    assert record is not None
    assert [one.device.device_uuid for one in record.devices] == [made.uuid]
    node.world.unprepare(ref)
    assert node.left() == []


def test_four_mig_devices_of_one_claim_are_made_on_one_gpu(node: MigNode) -> None:
    wanted = [("1g.10gb", 0), ("1g.10gb", 1), ("2g.20gb", 2), ("3g.40gb", 4)]
    ref = node.claim(*(node.name(*one) for one in wanted))
    assert len(node.world.prepare(ref)) == 4
    assert node.shapes() == [f"{profile}@{start}" for profile, start in wanted]
    node.world.unprepare(ref)
    assert node.left() == []


def test_claims_with_parts_of_one_gpu_come_and_go_each_by_itself(node: MigNode) -> None:
    one, two = (node.claim(node.name("1g.10gb", start), name=f"c{start}") for start in (0, 1))
    node.world.prepare(one)
    node.world.prepare(two)
    node.world.unprepare(one)
    assert (node.shapes(), node.mode()) == (["1g.10gb@1"], 1)
    node.world.unprepare(two)
    assert node.left() == []


def test_a_repeated_prepare_gives_the_same_answer_and_touches_nothing(node: MigNode) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    answer = node.world.prepare(ref)
    node.machine.fail_call("nvmlDeviceCreateGpuInstanceWithPlacement", UNKNOWN_ERROR)
    assert node.world.prepare(ref) == answer


def test_parts_and_the_whole_exclude_each_other(node: MigNode) -> None:
    part, whole = node.claim(node.name("1g.10gb", 0)), node.claim(node.whole(), name="whole")
    node.world.prepare(part)
    with pytest.raises(ConflictError, match="already allocated to different claim default/claim"):
        node.world.prepare(whole)
    node.world.unprepare(part)
    node.world.prepare(whole)
    with pytest.raises(ConflictError, match="already allocated to different claim default/whole"):
        node.world.prepare(part)
    node.world.unprepare(whole)
    assert node.left() == []


def test_parts_that_overlap_exclude_each_other(node: MigNode) -> None:
    small = node.claim(node.name("1g.10gb", 1))
    large = node.claim(node.name("3g.40gb", 0), name="large")
    node.world.prepare(small)
    with pytest.raises(ConflictError, match="already allocated to different claim"):
        node.world.prepare(large)
    assert node.shapes() == ["1g.10gb@1"]


def test_the_mode_stays_on_where_others_had_turned_it_on(node: MigNode) -> None:
    node.machine.set_mig_mode(node.gpu().uuid, enabled=True)
    node.look()
    ref = node.claim(node.name("1g.10gb", 0))
    node.world.prepare(ref)
    node.world.unprepare(ref)
    assert (node.shapes(), node.mode()) == ([], 1)


def test_an_ampere_gpu_in_mig_mode_is_divided_and_stays_in_it(
    make_node: Callable[[str], MigNode],
) -> None:
    node = make_node("a100x8")
    node.machine.set_mig_mode(node.gpu().uuid, enabled=True)
    node.machine.reset_gpu(node.gpu().uuid)
    node.look()
    ref = node.claim(node.name("1g.5gb", 6))
    node.world.prepare(ref)
    assert node.shapes() == ["1g.5gb@6"]
    node.world.unprepare(ref)
    assert (node.shapes(), node.mode()) == ([], 1)


def test_an_ampere_gpu_with_mig_off_is_not_divided(make_node: Callable[[str], MigNode]) -> None:
    node = make_node("a100x8")
    ref = node.claim(f"gpu-{node.gpu().minor}-mig-1g5gb-19-0")
    with pytest.raises(DeviceError, match="this card changes it only by a reset"):
        node.world.prepare(ref)
    assert node.left() == []


def test_mode_is_turned_off_for_a_whole_gpu_and_on_again_after_it(node: MigNode) -> None:
    node.machine.set_mig_mode(node.gpu().uuid, enabled=True)
    node.look()
    ref = node.claim(node.whole())
    node.world.prepare(ref)
    assert node.mode() == 0
    node.world.unprepare(ref)
    assert node.mode() == 1


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
def test_what_fails_on_the_way_is_rolled_back_whole(node: MigNode, call: str) -> None:
    ref = node.claim(node.name("1g.10gb", 0), node.name("1g.10gb", 1))
    node.machine.fail_call(call, UNKNOWN_ERROR)
    with pytest.raises(DeviceError, match="NVML refused"):
        node.world.prepare(ref)
    node.machine.clear_faults()
    assert node.left() == []
    node.world.prepare(ref)
    node.world.unprepare(ref)
    assert node.left() == []


def test_the_edits_that_cannot_be_had_take_the_device_back(node: MigNode) -> None:
    ref = node.claim(node.name("1g.10gb", 0))

    def refuse(*_: object) -> None:
        raise DeviceError("no such node")

    node.world.machine.device = refuse  # type: ignore[method-assign,assignment]
    with pytest.raises(DeviceError, match="no such node"):
        node.world.prepare(ref)
    assert node.left() == []


def test_a_wrong_config_is_refused_before_anything_is_made(node: MigNode) -> None:
    limits = {"defaultPerDevicePinnedMemoryLimit": {"1": "1Gi"}}
    config = make.config(kind="MigDeviceConfig", sharing={"strategy": "MPS", "mpsConfig": limits})
    node.machine.fail_call("nvmlDeviceCreateGpuInstanceWithPlacement", UNKNOWN_ERROR)
    ref = node.claim(node.name("1g.10gb", 0), configs=[config])
    strategies = node.world.sharing
    strategies.refuse_plan = ConfigError("invalid device index: 1")
    with pytest.raises(ConfigError, match="invalid device index"):
        node.world.prepare(ref)
    assert node.left() == []


def test_a_config_for_whole_gpus_that_names_a_mig_request_is_refused(node: MigNode) -> None:
    ref = node.claim(node.name("1g.10gb", 0), configs=[make.config("gpu", sharing=None)])
    with pytest.raises(ConfigError, match=r'cannot apply GpuConfig to device .* of type "mig"'):
        node.world.prepare(ref)
    assert node.left() == []


def test_a_place_that_another_program_took_is_waited_for(node: MigNode) -> None:
    node.machine.set_mig_mode(node.gpu().uuid, enabled=True)
    node.machine.create_mig(node.gpu().uuid, "3g.40gb", 0)
    ref = node.claim(node.name("1g.10gb", 1))
    with pytest.raises(TransientError, match=r"there is no room for 1g\.10gb"):
        node.world.prepare(ref, SOON)
    assert node.shapes() == ["3g.40gb@0"]


# Sharing


def test_sharing_is_set_on_the_mig_device_that_was_made(node: MigNode) -> None:
    ref = node.claim(node.name("1g.10gb", 0), configs=[MPS_ON_MIG])
    node.world.prepare(ref)
    (made,) = node.there()
    assert node.world.shared == [made.uuid]
    env = node.world.spec(ref)["devices"][0]["containerEdits"]["env"]
    assert env == [f"MPS={ref.uid}"]
    node.world.unprepare(ref)
    assert node.left() == []


def test_sharing_that_fails_takes_the_mig_device_with_it(node: MigNode) -> None:
    ref = node.claim(node.name("1g.10gb", 0), configs=[MPS_ON_MIG])
    node.world.sharing.refuse_apply = DeviceError("no daemon")
    with pytest.raises(DeviceError, match="no daemon"):
        node.world.prepare(ref)
    assert node.left() == []


def test_a_mig_device_whose_sharing_lives_on_is_not_destroyed_below_it(
    tmp_path: Path,
) -> None:
    node = MigNode.create(tmp_path / "node").restarted(survives_reboot=True)
    ref = node.claim(node.name("1g.10gb", 0), configs=[MPS_ON_MIG])
    node.world.prepare(ref)
    node.world.sharing.refuse_undo = TransientError("the daemon has not ended")
    node.world.unprepare(ref)
    assert node.shapes() == ["1g.10gb@0"]
    with pytest.raises(TransientError, match="the daemon has not ended"):
        node.world.prepare(node.claim(node.name("1g.10gb", 0), name="next"), SOON)
    node.world.sharing.refuse_undo = None
    assert node.world.reconciler(ReconcileTiming()).mend() == set()
    assert node.left() == []
    node.close()


# Static


def test_a_mig_device_that_others_made_is_used_and_left(node: MigNode) -> None:
    uuid = node.gpu().uuid
    node.machine.set_mig_mode(uuid, enabled=True)
    static = node.machine.create_mig(uuid, "2g.20gb", 2)
    node.look()
    ref = node.claim(node.name("2g.20gb", 2))
    node.world.prepare(ref)
    record = node.world.claims.records.read(ref.uid)
    assert record is not None
    assert record.devices[0].device.device_uuid == static
    assert record.plans == ()
    node.world.unprepare(ref)
    assert (node.shapes(), node.mode()) == (["2g.20gb@2"], 1)


def test_a_bare_gpu_instance_of_others_is_not_completed(node: MigNode) -> None:
    node.machine.set_mig_mode(node.gpu().uuid, enabled=True)
    node.machine.create_mig(node.gpu().uuid, "1g.10gb", 0)
    node.look()
    (device,) = node.gpu().mig.devices  # type: ignore[union-attr]
    with node.session.mig() as calls:
        calls.destroy_compute_instance(device.parent, device.gpu_instance, device.compute_instance)
    with pytest.raises(DeviceError, match="it is not a whole MIG device"):
        node.world.prepare(node.claim(node.name("1g.10gb", 0)))


def test_a_static_mig_device_that_went_is_told_of_when_prepared_again(node: MigNode) -> None:
    uuid = node.gpu().uuid
    node.machine.set_mig_mode(uuid, enabled=True)
    static = node.machine.create_mig(uuid, "1g.10gb", 0)
    node.look()
    ref = node.claim(node.name("1g.10gb", 0))
    node.world.prepare(ref)
    node.machine.destroy_mig(static)
    node.world.specs.delete(ref.uid)
    with pytest.raises(DeviceError, match=f"{static}.* was removed by others"):
        node.world.prepare(ref)
    node.world.unprepare(ref)
    assert node.world.left() == []


# Admin access


def test_admin_access_sees_a_mig_device_and_changes_nothing(node: MigNode) -> None:
    name = node.name("1g.10gb", 0)
    admin = node.claim(name, name="admin")
    node.world.api.results(admin)[0]["adminAccess"] = True
    with pytest.raises(TransientError, match="does not make it"):
        node.world.prepare(admin, SOON)
    ref = node.claim(name)
    node.world.prepare(ref)
    node.world.prepare(admin)
    assert node.world.nodes(admin) == node.world.nodes(ref)
    node.world.unprepare(admin)
    assert node.shapes() == ["1g.10gb@0"]
    node.world.unprepare(ref)
    assert node.left() == []


# Held, removed, rebooted


def test_a_held_mig_device_keeps_the_pod_until_it_is_let_go(node: MigNode) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    node.world.prepare(ref)
    (made,) = node.there()
    node.machine.hold_instance(made.uuid)
    with pytest.raises(TransientError, match=r"cannot be unprepared yet: .*processes still use it"):
        node.world.unprepare(ref, SOON)
    assert not node.world.specs.exists(ref.uid)
    newcomer = node.claim(node.name("1g.20gb", 0), name="newcomer")
    with pytest.raises(TransientError, match="MIG of an earlier claim has not ended"):
        node.world.prepare(newcomer, SOON)
    beside = node.claim(node.name("1g.10gb", 1), name="beside")
    node.world.prepare(beside)
    node.machine.release_instance(made.uuid)
    node.world.unprepare(ref)
    node.world.unprepare(beside)
    node.world.prepare(newcomer)
    node.world.unprepare(newcomer)
    assert node.left() == []


def test_a_held_mig_device_is_destroyed_by_the_reconciler_later(node: MigNode) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    node.world.prepare(ref)
    (made,) = node.there()
    node.machine.hold_instance(made.uuid)
    with pytest.raises(TransientError):
        node.world.unprepare(ref, SOON)
    reconciler = node.world.reconciler(ReconcileTiming())
    assert reconciler.mend() == {ref.uid}
    node.machine.release_instance(made.uuid)
    assert reconciler.mend() == set()
    assert node.left() == []


def test_what_nvml_refuses_for_good_does_not_keep_the_pod(node: MigNode) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    node.world.prepare(ref)
    node.machine.fail_call("nvmlGpuInstanceDestroy", UNKNOWN_ERROR)
    node.world.unprepare(ref)
    record = node.world.claims.records.read(ref.uid)
    assert record is not None
    assert record.state is RecordState.RELEASED
    with pytest.raises(TransientError, match="has not ended"):
        node.world.prepare(node.claim(node.name("1g.10gb", 0), name="next"), SOON)
    node.machine.clear_faults()
    assert node.world.reconciler(ReconcileTiming()).mend() == set()
    assert node.left() == []


def test_a_mig_device_removed_behind_our_back_is_made_again(node: MigNode) -> None:
    ref = node.claim(node.name("1g.10gb", 0), node.name("1g.10gb", 1))
    answer = node.world.prepare(ref)
    node.machine.destroy_mig(node.there()[0].uuid)
    assert node.world.prepare(ref) == answer
    assert node.shapes() == ["1g.10gb@0", "1g.10gb@1"]
    node.world.unprepare(ref)
    assert node.left() == []


def test_a_mig_device_removed_behind_our_back_is_unprepared(node: MigNode) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    node.world.prepare(ref)
    node.machine.destroy_mig(node.there()[0].uuid)
    node.world.unprepare(ref)
    assert node.left() == []


def test_after_a_reboot_the_claim_gets_its_mig_device_anew(node: MigNode) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    node.world.prepare(ref)
    node.machine.reboot()
    again = node.restarted()
    assert again.world.reconciler(ReconcileTiming()).mend() == set()
    assert again.shapes() == []
    again.world.prepare(ref)
    assert again.shapes() == ["1g.10gb@0"]
    again.world.unprepare(ref)
    assert again.left() == []
    again.close()


def test_after_a_reboot_nothing_of_others_is_destroyed(node: MigNode) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    node.world.prepare(ref)
    node.machine.reboot()
    node.machine.set_mig_mode(node.gpu().uuid, enabled=True)
    node.machine.create_mig(node.gpu().uuid, "1g.10gb", 0)
    again = node.restarted()
    again.world.unprepare(ref)
    assert again.shapes() == ["1g.10gb@0"]
    again.close()


def test_a_claim_whose_record_is_lost_has_its_mig_device_taken_away_in_the_end(
    node: MigNode,
) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    node.world.prepare(ref)
    (record,) = (node.world.plugin / "claims").iterdir()
    record.write_text("damaged")
    assert node.world.reconciler(ReconcileTiming()).mend() == set()
    assert node.shapes() == ["1g.10gb@0"], "it may be in use"
    node.world.unprepare(ref)
    assert node.shapes() == []
    assert node.mode() == 0


def test_the_next_claim_takes_away_what_a_lost_record_left(node: MigNode) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    node.world.prepare(ref)
    (record,) = (node.world.plugin / "claims").iterdir()
    record.write_text("damaged")
    node.world.prepare(node.claim(node.name("1g.20gb", 0), name="next"))
    assert node.shapes() == ["1g.20gb@0"]


def test_a_mode_that_cannot_be_turned_off_keeps_nobody_and_is_tried_again(node: MigNode) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    node.world.prepare(ref)
    node.machine.fail_call("nvmlDeviceSetMigMode", UNKNOWN_ERROR)
    node.world.unprepare(ref)
    assert (node.shapes(), node.mode()) == ([], 1)
    node.machine.clear_faults()
    node.world.reconciler(ReconcileTiming()).mend()
    assert node.left() == []


def test_instances_made_here_are_known_as_such_in_the_inventory(node: MigNode) -> None:
    node.world.prepare(node.claim(node.name("1g.10gb", 0)))
    node.machine.create_mig(node.gpu().uuid, "1g.10gb", 4)
    node.look()
    mig = node.gpu().mig
    assert mig is not None
    devices = [one for one in mig.instances if isinstance(one, MigDevice)]
    assert [(one.placement.start, one.made_here) for one in devices] == [(0, True), (4, False)]


def test_errors_are_of_the_drivers_own_tree_while_nvml_is_closed(node: MigNode) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    node.session.close()
    with pytest.raises(DriverError, match="the NVIDIA driver is not open"):
        node.world.prepare(ref, FAST.longest_pause)
    node.look()
    node.world.prepare(ref)
