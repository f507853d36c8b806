"""What the kubelet is told, and what is on disk afterwards."""

from dataclasses import replace
from pathlib import Path

import pytest

import make
from claims_world import MPS, World
from dra_driver.claims.model import ClaimRef, ClaimUid, PreparedDevice
from dra_driver.devices.model import Inventory, MigMode, SickGpu
from dra_driver.errors import (
    ConfigError,
    ConflictError,
    DeviceError,
    NotFoundError,
    StateError,
    TransientError,
    UnavailableError,
)

UID = "11111111-0000-4000-8000-000000000000"


def away(_: str) -> None:
    raise UnavailableError("the API server is away")


def test_a_claim_gets_its_gpus(world: World) -> None:
    ref = world.api.add("gpu-1", "gpu-3")
    assert world.prepare(ref) == (
        PreparedDevice(
            request_names=("gpu",),
            pool_name="node-1",
            device_name="gpu-1",
            cdi_device_ids=(f"k8s.gpu.nvidia.com/claim={UID}-gpu-1",),
        ),
        PreparedDevice(
            request_names=("gpu",),
            pool_name="node-1",
            device_name="gpu-3",
            cdi_device_ids=(f"k8s.gpu.nvidia.com/claim={UID}-gpu-3",),
        ),
    )
    assert world.nodes(ref) == ["/dev/nvidia1", "/dev/nvidia3"]
    assert world.spec(ref)["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


def test_after_unprepare_nothing_is_left(world: World) -> None:
    ref = world.api.add("gpu-1", "gpu-3")
    world.prepare(ref)
    assert len(world.left()) == 4
    world.unprepare(ref)
    assert world.left() == []


def test_a_repeated_prepare_gives_the_same_answer_and_touches_nothing(world: World) -> None:
    ref = world.api.add("gpu-1")
    first = world.prepare(ref)
    files = [(world.root / name).stat() for name in world.left()]
    assert world.prepare(ref) == first
    assert [(world.root / name).stat()[1:9] for name in world.left()] == [
        file[1:9] for file in files
    ]


def test_a_repeated_prepare_writes_a_missing_spec(world: World) -> None:
    ref = world.api.add("gpu-1")
    world.prepare(ref)
    world.specs.delete(ref.uid)
    world.prepare(ref)
    assert world.nodes(ref) == ["/dev/nvidia1"]


def test_a_repeated_prepare_needs_no_api_server(world: World) -> None:
    ref = world.api.add("gpu-1")
    first = world.prepare(ref)
    world.api.trouble = away
    assert world.prepare(ref) == first


def test_a_repeated_prepare_needs_no_gpu_while_the_spec_is_there(world: World) -> None:
    ref = world.api.add("gpu-1")
    first = world.prepare(ref)
    world.machine.inventory = make.inventory(make.gpu(5))
    assert world.prepare(ref) == first
    world.specs.delete(ref.uid)
    with pytest.raises(DeviceError, match=r"prepared as gpu-1\) is not on this node"):
        world.prepare(ref)


def test_after_a_reboot_a_claim_is_prepared_anew(tmp_path: Path) -> None:
    before = World(tmp_path)
    ref = before.api.add("gpu-1", configs=[MPS])
    before.prepare(ref)
    (tmp_path / "hardware" / make.gpu(1).uuid).unlink()
    after = World(tmp_path, boot_id="boot-2", api=before.api)
    after.prepare(ref)
    assert after.set_on(make.gpu(1).uuid) == ref.uid
    record = after.claims.records.read(ref.uid)
    assert record is not None
    assert record.boot_id == "boot-2"
    before.close()
    after.close()


def test_after_a_reboot_an_old_claim_keeps_nobody_away(tmp_path: Path) -> None:
    before = World(tmp_path)
    old = before.api.add("gpu-1", configs=[MPS])
    before.prepare(old)
    after = World(tmp_path, boot_id="boot-2", api=before.api)
    new = after.api.add("gpu-1", uid="new", name="new", configs=[MPS])
    after.prepare(new)
    after.unprepare(old)
    assert after.set_on(make.gpu(1).uuid) == "new"
    before.close()
    after.close()


def test_a_prepared_claim_keeps_its_gpu_when_minor_numbers_move(world: World) -> None:
    ref = world.api.add("gpu-1")
    answer = world.prepare(ref)
    one, two = make.gpu(1), make.gpu(2)
    world.machine.inventory = make.inventory(replace(one, minor=2), replace(two, minor=1))
    assert world.prepare(ref) == answer
    assert world.nodes(ref) == ["/dev/nvidia2"]
    newcomer = world.api.add("gpu-2", uid="new", name="new")
    with pytest.raises(ConflictError, match='requested device "gpu-2" is already allocated'):
        world.prepare(newcomer)


def test_unknown_claims_and_claims_unprepared_before_are_unprepared(world: World) -> None:
    world.api.trouble = away
    ref = ClaimRef(uid=ClaimUid("never-seen"), namespace="default", name="claim")
    world.unprepare(ref)
    world.unprepare(ref)


def test_unprepare_asks_no_api_server(world: World) -> None:
    ref = world.api.add("gpu-1")
    world.prepare(ref)
    world.api.asked.clear()
    world.unprepare(ref)
    assert world.api.asked == []


@pytest.mark.parametrize("uid", ["", "../../etc/passwd", "a/b", ".hidden", "a\n", "x" * 200])
def test_a_uid_that_is_no_uid_touches_no_file(world: World, uid: str) -> None:
    ref = ClaimRef(uid=ClaimUid(uid), namespace="default", name="claim")
    with pytest.raises(ConfigError, match="is not a valid UID"):
        world.prepare(ref)
    world.unprepare(ref)
    assert world.left() == []


def test_a_replaced_claim_is_refused(world: World) -> None:
    ref = world.api.add("gpu-1")
    world.api.add("gpu-1", uid="22222222-0000-4000-8000-000000000000")
    with pytest.raises(ConflictError, match="claim default/claim was replaced: its UID is 2222"):
        world.prepare(ref)
    assert world.left() == []


def test_a_deleted_claim_is_refused(world: World) -> None:
    ref = world.api.add("gpu-1")
    world.api.claims.clear()
    with pytest.raises(NotFoundError, match="claim default/claim no longer exists"):
        world.prepare(ref)


def test_a_claim_that_is_not_allocated_is_refused(world: World) -> None:
    ref = world.api.add("gpu-1")
    del world.api.claims["default", "claim"]["status"]["allocation"]
    with pytest.raises(ConfigError, match="claim default/claim is not allocated"):
        world.prepare(ref)


def test_a_claim_without_devices_of_this_driver_has_an_empty_answer(world: World) -> None:
    ref = world.api.add()
    assert world.prepare(ref) == ()
    assert world.left() == []


def test_a_claim_that_was_allocated_anew_gets_its_new_device(world: World) -> None:
    ref = world.api.add("gpu-1", configs=[MPS])
    world.prepare(ref)
    world.api.results(ref)[0]["device"] = "gpu-2"
    (device,) = world.prepare(ref)
    assert device.device_name == "gpu-2"
    assert world.set_on(make.gpu(1).uuid) is None
    world.unprepare(ref)
    assert world.left() == []


def test_a_sub_request_is_answered_by_its_request(world: World) -> None:
    ref = world.api.add("gpu-1")
    world.api.results(ref)[0]["request"] = "gpu/large"
    (device,) = world.prepare(ref)
    assert device.request_names == ("gpu",)


def test_two_shares_of_a_device_have_cdi_devices_of_their_own(world: World) -> None:
    ref = world.api.add("gpu-1", "gpu-1")
    for share, result in enumerate(world.api.results(ref)):
        result["shareID"] = f"share-{share}"
    devices = world.prepare(ref)
    assert [device.share_id for device in devices] == ["share-0", "share-1"]
    assert len({device.cdi_device_ids for device in devices}) == 2
    assert len(world.spec(ref)["devices"]) == 2


def test_one_device_seen_and_used_in_one_claim_is_one_cdi_device(world: World) -> None:
    ref = world.api.add("gpu-1", "gpu-1")
    world.api.results(ref)[1]["adminAccess"] = True
    devices = world.prepare(ref)
    assert devices[0].cdi_device_ids == devices[1].cdi_device_ids
    assert len(world.spec(ref)["devices"]) == 1


def test_admin_access_neither_conflicts_nor_changes_anything(world: World) -> None:
    user = world.api.add("gpu-1", uid="user", name="user", configs=[MPS])
    world.prepare(user)
    admin = world.api.add("gpu-1", "gpu-2", uid="admin", name="admin", configs=[MPS])
    for result in world.api.results(admin):
        result["adminAccess"] = True
    world.prepare(admin)
    assert world.nodes(admin) == ["/dev/nvidia1", "/dev/nvidia2"]
    assert world.set_on(make.gpu(2).uuid) is None
    late = world.api.add("gpu-2", uid="late", name="late")
    world.prepare(late)
    world.unprepare(admin)
    assert world.set_on(make.gpu(1).uuid) == "user"


def test_a_gpu_that_another_claim_holds_is_refused(world: World) -> None:
    holder = world.api.add("gpu-1", uid="holder", name="holder")
    world.prepare(holder)
    before = world.left()
    ref = world.api.add("gpu-0", "gpu-1")
    with pytest.raises(ConflictError) as caught:
        world.prepare(ref)
    assert str(caught.value) == (
        'requested device "gpu-1" is already allocated to different claim default/holder '
        "(UID holder), which is prepared on this node; delete the pods of one of the two claims"
    )
    assert world.left() == before


@pytest.mark.parametrize("loss", ["deleted", "replaced", "deallocated", "moved"])
def test_a_gpu_of_a_claim_that_is_gone_is_waited_for(world: World, loss: str) -> None:
    holder = world.api.add("gpu-1", uid="holder", name="holder")
    world.prepare(holder)
    match loss:
        case "deleted":
            del world.api.claims["default", "holder"]
        case "replaced":
            world.api.add("gpu-2", uid="other", name="holder")
        case "deallocated":
            del world.api.claims["default", "holder"]["status"]
        case "moved":
            world.api.results(holder)[0]["device"] = "gpu-2"
    ref = world.api.add("gpu-1")
    tries = 0

    def unprepared_at_the_third_look(name: str) -> None:
        nonlocal tries
        tries += name == "holder"
        if tries == 3:
            world.unprepare(holder)

    world.api.trouble = unprepared_at_the_third_look
    (device,) = world.prepare(ref)
    assert device.device_name == "gpu-1"


def test_a_gpu_of_a_gone_claim_that_is_never_freed_is_an_error_that_says_so(world: World) -> None:
    holder = world.api.add("gpu-1", uid="holder", name="holder")
    world.prepare(holder)
    del world.api.claims["default", "holder"]
    ref = world.api.add("gpu-1")
    with pytest.raises(TransientError) as caught:
        world.prepare(ref, seconds=0.05)
    assert str(caught.value).startswith(
        'device "gpu-1" is still prepared for claim default/holder (UID holder), '
        "which no longer exists; it is free when the kubelet has ended that claim's containers"
    )
    assert "it is tried again by itself" in str(caught.value)


def test_a_mark_that_a_crash_left_keeps_nobody_away(world: World) -> None:
    ref = world.api.add("gpu-1")
    folder = world.plugin / "gpus" / make.gpu(1).uuid
    folder.mkdir(parents=True)
    (folder / "nobody").touch()
    world.prepare(ref)
    assert [mark.name for mark in folder.iterdir()] == [ref.uid]


def test_an_api_server_that_is_away_is_waited_for(world: World) -> None:
    ref = world.api.add("gpu-1")

    def away_twice(_: str) -> None:
        if len(world.api.asked) < 3:
            away("")

    world.api.trouble = away_twice
    assert len(world.prepare(ref)) == 1


def test_an_api_server_that_stays_away_is_an_error(world: World) -> None:
    ref = world.api.add("gpu-1")
    world.api.trouble = away
    with pytest.raises(TransientError, match="the API server is away; waited 0 s, it is tried"):
        world.prepare(ref, seconds=0.05)
    assert world.left() == []


def test_a_driver_that_is_starting_is_waited_for(world: World) -> None:
    ref = world.api.add("gpu-1")
    ready = world.machine.inventory
    world.machine.inventory = Inventory(driver_version=None, cuda_version=None)

    def ready_at_the_third_look(_: str) -> None:
        if len(world.api.asked) == 3:
            world.machine.inventory = ready

    world.api.trouble = ready_at_the_third_look
    assert len(world.prepare(ref)) == 1


def test_a_sick_gpu_is_waited_for_and_named(world: World) -> None:
    ref = world.api.add("gpu-1")
    sick = SickGpu(index=1, reason="fell off the bus")
    world.machine.inventory = make.inventory(make.gpu(0), sick=(sick,))
    with pytest.raises(TransientError, match=r"not usable now \(GPU 1: fell off the bus\)"):
        world.prepare(ref, seconds=0.05)


def test_a_device_that_is_not_there_is_refused_with_what_is(world: World) -> None:
    world.machine.inventory = make.inventory(make.gpu(0), make.gpu(4))
    with pytest.raises(DeviceError, match='"gpu-1" is not on this node, which has gpu-0, gpu-4;'):
        world.prepare(world.api.add("gpu-1"))


def test_a_device_of_another_pool_is_refused(world: World) -> None:
    with pytest.raises(ConfigError, match='is in pool "node-2", and this node serves pool'):
        world.prepare(world.api.add("gpu-1", pool="node-2"))


def test_a_gpu_in_mig_mode_is_refused_unless_only_looked_at(world: World) -> None:
    world.machine.inventory = make.inventory(make.gpu(1, mig_mode=MigMode.ENABLED))
    ref = world.api.add("gpu-1")
    with pytest.raises(DeviceError, match='"gpu-1" is in MIG mode and cannot be used as a whole'):
        world.prepare(ref)
    world.api.results(ref)[0]["adminAccess"] = True
    assert len(world.prepare(ref)) == 1


def test_a_strategy_this_version_lacks_is_refused(world: World) -> None:
    config = make.config(sharing={"strategy": "TimeSlicing"})
    ref = world.api.add("gpu-1", configs=[config])
    with pytest.raises(ConfigError) as caught:
        world.prepare(ref)
    assert str(caught.value) == (
        "sharing strategy TimeSlicing is not available in this version of the driver: remove "
        "`sharing` from the GpuConfig of request gpu"
    )
    assert world.left() == []


def test_a_wrong_config_is_told_before_any_gpu_is_looked_for(world: World) -> None:
    world.machine.inventory = make.inventory(make.gpu(7))
    ref = world.api.add("gpu-1", configs=[make.config(sharingg={})])
    with pytest.raises(ConfigError, match=r"^spec\.devices\.config\[0\] of the claim: unknown f"):
        world.prepare(ref)


def test_a_damaged_record_is_put_aside_and_the_claim_prepared_anew(world: World) -> None:
    ref = world.api.add("gpu-1")
    answer = world.prepare(ref)
    file = world.plugin / "claims" / f"{ref.uid}.json"
    for count in (1, 2):
        file.write_bytes(file.read_bytes()[:-9])
        assert world.prepare(ref) == answer
        assert world.claims.records.quarantined == count
    aside = sorted(path.name for path in (world.plugin / "quarantine").iterdir())
    assert aside == [f"{ref.uid}.json", f"{ref.uid}.json.1"]


def test_a_claim_with_a_damaged_record_is_unprepared(world: World) -> None:
    ref = world.api.add("gpu-1")
    world.prepare(ref)
    (world.plugin / "claims" / f"{ref.uid}.json").write_text("{}")
    world.unprepare(ref)
    assert not world.specs.exists(ref.uid)
    newcomer = world.api.add("gpu-1", uid="new", name="new")
    world.prepare(newcomer)


def test_a_record_under_a_wrong_name_is_put_aside(world: World) -> None:
    ref = world.api.add("gpu-1")
    world.prepare(ref)
    folder = world.plugin / "claims"
    (folder / f"{ref.uid}.json").rename(folder / "other.json")
    assert world.claims.records.read(ClaimUid("other")) is None
    assert world.claims.records.quarantined == 1


def test_a_disk_that_cannot_be_written_is_an_error_of_that_claim(world: World) -> None:
    ref = world.api.add("gpu-1")
    folder = world.plugin / "claims"
    folder.rmdir()
    folder.write_text("no folder")
    with pytest.raises(StateError, match="check the free space and the permissions"):
        world.prepare(ref)
    folder.unlink()
    folder.mkdir()
    world.prepare(ref)
