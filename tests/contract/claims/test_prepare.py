"""What the kubelet is told, and what is on disk afterwards."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.contextvars import get_contextvars
from structlog.testing import capture_logs

import make
from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.devices.exclusion import without_excluded
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
from worlds.configs import CONFIGS, MPS
from worlds.driver import Driver

UID = "11111111-0000-4000-8000-000000000000"


def unread(file: os.stat_result) -> tuple[int, ...]:
    """What tells of any change to a file; to read it is none."""
    return (*file[:7], file.st_mtime_ns, file.st_ctime_ns)


def away(_: str) -> None:
    raise UnavailableError("the API server is away")


def test_a_claim_gets_its_gpus(driver: Driver) -> None:
    ref = driver.api.add("gpu-1", "gpu-3")
    told = [
        (one.name, one.pool, one.request_names, one.cdi_device_ids, one.share_id)
        for one in driver.prepare(ref)
    ]
    assert told == [
        ("gpu-1", "node-1", ("gpu",), (f"k8s.gpu.nvidia.com/claim={UID}-gpu-1",), None),
        ("gpu-3", "node-1", ("gpu",), (f"k8s.gpu.nvidia.com/claim={UID}-gpu-3",), None),
    ]
    assert driver.nodes(ref) == ["/dev/nvidia1", "/dev/nvidia3"]
    assert driver.spec(ref)["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


def test_log_lines_say_which_claim_which_devices_and_for_whom(driver: Driver) -> None:
    ref = driver.api.add("gpu-1", "gpu-3")
    users = driver.api.claims[ref.namespace, ref.name]["status"]["reservedFor"]
    users.append(make.pod_group("group"))
    with capture_logs() as logs:
        driver.prepare(ref)
        driver.unprepare(ref)
    facts = {"claim": "default/claim", "claim_uid": UID, "devices": ["gpu-1", "gpu-3"]}
    assert logs == [
        {"event": f"claim {word}", "log_level": "info", **facts}
        for word in ("prepared", "unprepared")
    ]
    assert get_contextvars() == {"pods": ["pod"], "pod_groups": ["group"]}


def test_log_lines_name_the_first_of_many_pods(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    users = driver.api.claims[ref.namespace, ref.name]["status"]["reservedFor"]
    users += [{"resource": "pods", "name": f"p{each}", "uid": f"u{each}"} for each in range(127)]
    users += [make.pod_group(f"g{each}") for each in range(128)]
    driver.prepare(ref)
    named = {name: len(names) for name, names in get_contextvars().items()}
    assert named == {"pods": 16, "pod_groups": 16}


@pytest.mark.parametrize(
    ("mode", "plan"), [("exclusive", []), ("sharing", ["intended", "applied"])]
)
def test_steps_come_in_the_order_that_what_follows_a_crash_relies_on(
    tmp_path: Path, mode: str, plan: list[str]
) -> None:
    steps: list[str] = []
    driver = Driver(tmp_path, step=steps.append)
    driver.prepare(driver.api.add("gpu-1", configs=CONFIGS[mode]))
    driver.close()
    assert steps == [*plan, "recorded", "described", "specified"]


def test_after_unprepare_nothing_is_left(driver: Driver) -> None:
    ref = driver.api.add("gpu-1", "gpu-3")
    driver.prepare(ref)
    assert len(driver.left()) == 3
    driver.unprepare(ref)
    assert driver.left() == []


def test_a_repeated_prepare_gives_the_same_answer_and_touches_nothing(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    first = driver.prepare(ref)
    before = [unread((driver.root / name).stat()) for name in driver.left()]
    assert driver.prepare(ref) == first
    assert [unread((driver.root / name).stat()) for name in driver.left()] == before


def test_a_repeated_prepare_writes_a_missing_spec(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    driver.prepare(ref)
    driver.specs.delete(ref.uid)
    driver.prepare(ref)
    assert driver.nodes(ref) == ["/dev/nvidia1"]


CHANGES: Mapping[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "emptied": lambda path: path.write_bytes(b""),
    "written in place": lambda path: path.write_bytes(b"x" * path.stat().st_size),
    "replaced": lambda path: (path.unlink(), path.write_bytes(b"{}")),
    "for root alone": lambda path: path.chmod(0o600),
    "beside one of NVIDIA's DRA driver": lambda path: path.with_suffix(".yaml").touch(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("what", ["cdi", "plugin/device-metadata"])
def test_a_repeated_prepare_puts_right_what_somebody_has_changed(
    driver: Driver, what: str, change: str
) -> None:
    ref = driver.api.add("gpu-1")
    driver.prepare(ref)
    folder = driver.root / what

    def seen() -> dict[str, tuple[str, int]]:
        files = (path for path in folder.rglob("*") if path.is_file())
        return {path.name: (path.read_text(), path.stat().st_mode) for path in files}

    before = seen()
    (path,) = (path for path in folder.rglob("*.json") if path.is_file())
    CHANGES[change](path)
    for _ in range(2):
        driver.prepare(ref)
    if what == "cdi":
        assert seen() == before
    else:  # of another generation where it was changed
        assert path.stat().st_mode & 0o777 == 0o644
        assert "gpu-1" in path.read_text()


def test_a_repeated_prepare_needs_no_api_server(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    first = driver.prepare(ref)
    driver.api.trouble = away
    assert driver.prepare(ref) == first


def test_a_repeated_prepare_needs_no_gpu_while_the_spec_is_there(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    first = driver.prepare(ref)
    driver.gpus.inventory = make.inventory(make.gpu(5))
    assert driver.prepare(ref) == first
    driver.specs.delete(ref.uid)
    with pytest.raises(DeviceError, match=r"prepared as gpu-1\) is not on this node"):
        driver.prepare(ref)


def test_an_excluded_gpu_is_prepared_only_for_its_earlier_claims(tmp_path: Path) -> None:
    before = Driver(tmp_path)
    had = before.api.add("gpu-1", configs=[MPS])
    first = before.prepare(had)
    after = Driver(tmp_path, boot_id="boot-2", api=before.api)
    after.gpus.inventory = without_excluded(
        after.gpus.inventory, ("1", "2"), lambda gpu: after.claims.ledger.is_about(gpu.uuid)
    )
    assert after.prepare(had) == first
    for name in ("gpu-1", "gpu-2"):
        with pytest.raises(DeviceError, match=r'left out by "[12]" of --exclude-gpus; delete the'):
            after.prepare(after.api.add(name, uid=f"{UID[:-1]}{name[-1]}"))
    after.sharing.refuse_undo = DeviceError("the GPU refused")
    after.unprepare(had)
    with pytest.raises(DeviceError, match="left out by"):
        after.prepare(after.api.add("gpu-1"))
    after.sharing.refuse_undo = None
    after.unprepare(had)
    assert after.left() == []
    before.close()
    after.close()


def test_after_a_reboot_a_claim_is_prepared_again(tmp_path: Path) -> None:
    before = Driver(tmp_path)
    ref = before.api.add("gpu-1", configs=[MPS])
    before.prepare(ref)
    (tmp_path / "hardware" / make.gpu(1).uuid).unlink()
    after = Driver(tmp_path, boot_id="boot-2", api=before.api)
    after.prepare(ref)
    assert after.set_on(make.gpu(1).uuid) == ref.uid
    record = after.claims.ledger.read(ref.uid)
    assert record is not None
    assert record.boot_id == "boot-2"
    before.close()
    after.close()


def test_after_a_reboot_an_old_claim_keeps_nobody_away(tmp_path: Path) -> None:
    before = Driver(tmp_path)
    old = before.api.add("gpu-1", configs=[MPS])
    before.prepare(old)
    after = Driver(tmp_path, boot_id="boot-2", api=before.api)
    new = after.api.add("gpu-1", uid="new", name="new", configs=[MPS])
    after.prepare(new)
    after.unprepare(old)
    assert after.set_on(make.gpu(1).uuid) == "new"
    before.close()
    after.close()


def test_a_prepared_claim_keeps_its_gpu_when_minor_numbers_move(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    answer = driver.prepare(ref)
    one, two = make.gpu(1), make.gpu(2)
    driver.gpus.inventory = make.inventory(replace(one, minor=2), replace(two, minor=1))
    assert driver.prepare(ref) == answer
    assert driver.nodes(ref) == ["/dev/nvidia2"]
    newcomer = driver.api.add("gpu-2", uid="new", name="new")
    with pytest.raises(ConflictError, match='requested device "gpu-2" is already allocated'):
        driver.prepare(newcomer)


def test_unknown_and_unprepared_claims_are_unprepared(driver: Driver) -> None:
    driver.api.trouble = away
    ref = ClaimRef(uid=ClaimUid("never-seen"), namespace="default", name="claim")
    driver.unprepare(ref)
    driver.unprepare(ref)


def test_unprepare_asks_no_api_server(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    driver.prepare(ref)
    driver.api.asked.clear()
    driver.unprepare(ref)
    assert driver.api.asked == []


@pytest.mark.parametrize("uid", ["", "../../etc/passwd", "a/b", ".hidden", "a\n", "x" * 200])
def test_an_invalid_uid_touches_no_file(driver: Driver, uid: str) -> None:
    ref = ClaimRef(uid=ClaimUid(uid), namespace="default", name="claim")
    with pytest.raises(ConfigError, match="is not a valid UID"):
        driver.prepare(ref)
    driver.unprepare(ref)
    assert driver.left() == []


def test_a_replaced_claim_is_refused(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    driver.api.add("gpu-1", uid="22222222-0000-4000-8000-000000000000")
    with pytest.raises(ConflictError, match="claim default/claim was replaced: its UID is 2222"):
        driver.prepare(ref)
    assert driver.left() == []


def test_a_deleted_claim_is_refused(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    driver.api.claims.clear()
    with pytest.raises(NotFoundError, match="claim default/claim no longer exists"):
        driver.prepare(ref)


def test_a_claim_that_is_not_allocated_is_refused(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    del driver.api.claims["default", "claim"]["status"]["allocation"]
    with pytest.raises(ConfigError, match="claim default/claim is not allocated"):
        driver.prepare(ref)


def test_a_claim_without_devices_of_this_driver_has_an_empty_answer(driver: Driver) -> None:
    ref = driver.api.add()
    assert driver.prepare(ref) == ()
    assert driver.left() == []


def test_a_claim_that_was_allocated_again_gets_its_new_device(driver: Driver) -> None:
    ref = driver.api.add("gpu-1", configs=[MPS])
    driver.prepare(ref)
    driver.api.results(ref)[0]["device"] = "gpu-2"
    (device,) = driver.prepare(ref)
    assert device.name == "gpu-2"
    assert driver.set_on(make.gpu(1).uuid) is None
    driver.unprepare(ref)
    assert driver.left() == []


def test_a_sub_request_is_answered_by_its_request(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    driver.api.results(ref)[0]["request"] = "gpu/large"
    (device,) = driver.prepare(ref)
    assert device.request_names == ("gpu",)


def test_two_shares_of_a_device_have_cdi_devices_of_their_own(driver: Driver) -> None:
    ref = driver.api.add("gpu-1", "gpu-1")
    for share, result in enumerate(driver.api.results(ref)):
        result["shareID"] = f"share-{share}"
    devices = driver.prepare(ref)
    assert [device.share_id for device in devices] == ["share-0", "share-1"]
    assert len({device.cdi_device_ids for device in devices}) == 2
    assert len(driver.spec(ref)["devices"]) == 2


def test_one_device_seen_and_used_in_one_claim_is_one_cdi_device(driver: Driver) -> None:
    ref = driver.api.add("gpu-1", "gpu-1")
    driver.api.results(ref)[1]["adminAccess"] = True
    devices = driver.prepare(ref)
    assert devices[0].cdi_device_ids == devices[1].cdi_device_ids
    assert len(driver.spec(ref)["devices"]) == 1


def test_admin_access_neither_conflicts_nor_changes_anything(driver: Driver) -> None:
    user = driver.api.add("gpu-1", uid="user", name="user", configs=[MPS])
    driver.prepare(user)
    admin = driver.api.add("gpu-1", "gpu-2", "gpu-3", uid="admin", name="admin", configs=[MPS])
    for result in driver.api.results(admin)[:2]:
        result["adminAccess"] = True
    driver.prepare(admin)
    assert driver.nodes(admin) == ["/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia3"]
    assert driver.set_on(make.gpu(2).uuid) is None
    late = driver.api.add("gpu-2", uid="late", name="late")
    driver.prepare(late)
    driver.unprepare(admin)
    assert driver.set_on(make.gpu(1).uuid) == "user"


def test_a_gpu_that_another_claim_holds_is_refused(driver: Driver) -> None:
    holder = driver.api.add("gpu-1", uid="holder", name="holder")
    driver.prepare(holder)
    before = driver.left()
    ref = driver.api.add("gpu-0", "gpu-1")
    with pytest.raises(ConflictError) as caught:
        driver.prepare(ref)
    assert str(caught.value) == (
        'requested device "gpu-1" is already allocated to different claim default/holder '
        "(UID holder), which is prepared on this node; delete the pods of one of the two claims"
    )
    assert driver.left() == before


@pytest.mark.parametrize("loss", ["deleted", "replaced", "deallocated", "moved"])
def test_a_gpu_of_a_claim_that_is_gone_is_waited_for(driver: Driver, loss: str) -> None:
    holder = driver.api.add("gpu-1", uid="holder", name="holder")
    driver.prepare(holder)
    match loss:
        case "deleted":
            del driver.api.claims["default", "holder"]
        case "replaced":
            driver.api.add("gpu-2", uid="other", name="holder")
        case "deallocated":
            del driver.api.claims["default", "holder"]["status"]
        case "moved":
            driver.api.results(holder)[0]["device"] = "gpu-2"
    ref = driver.api.add("gpu-1")
    tries = 0

    def unprepared_at_the_third_look(name: str) -> None:
        nonlocal tries
        tries += name == "holder"
        if tries == 3:
            driver.unprepare(holder)

    driver.api.trouble = unprepared_at_the_third_look
    (device,) = driver.prepare(ref)
    assert device.name == "gpu-1"


def test_a_gpu_that_a_gone_claim_never_frees_is_named_in_the_error(driver: Driver) -> None:
    holder = driver.api.add("gpu-1", uid="holder", name="holder")
    driver.prepare(holder)
    del driver.api.claims["default", "holder"]
    ref = driver.api.add("gpu-1")
    with pytest.raises(TransientError) as caught:
        driver.prepare(ref, seconds=0.05)
    assert str(caught.value).startswith(
        'device "gpu-1" is still prepared for claim default/holder (UID holder), '
        "which no longer exists; it is free when the kubelet has ended that claim's containers"
    )
    assert "the kubelet tries again" in str(caught.value)


def test_an_api_server_that_is_away_is_waited_for(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")

    def away_twice(_: str) -> None:
        if len(driver.api.asked) < 3:
            away("")

    driver.unprepare(ref)  # for an earlier pod with the claim
    driver.api.trouble = away_twice
    assert len(driver.prepare(ref)) == 1


def test_an_api_server_that_stays_away_is_an_error(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    driver.api.trouble = away
    with pytest.raises(TransientError, match="server is away; waited 0 s; the kubelet tries"):
        driver.prepare(ref, seconds=0.05)
    assert driver.left() == []


def test_a_driver_that_is_starting_is_waited_for(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    ready = driver.gpus.inventory
    driver.gpus.inventory = Inventory(driver_version=None, cuda_version=None)

    def ready_at_the_third_look(_: str) -> None:
        if len(driver.api.asked) == 3:
            driver.gpus.inventory = ready

    driver.api.trouble = ready_at_the_third_look
    assert len(driver.prepare(ref)) == 1


def test_a_sick_gpu_is_waited_for_and_named(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    sick = SickGpu(index=1, reason="fell off the bus")
    driver.gpus.inventory = make.inventory(make.gpu(0), sick=(sick,))
    with pytest.raises(TransientError, match=r"not usable now \(GPU 1: fell off the bus\)"):
        driver.prepare(ref, seconds=0.05)


def test_a_missing_device_is_refused_with_the_existing_ones(driver: Driver) -> None:
    driver.gpus.inventory = make.inventory(make.gpu(0), make.gpu(4))
    with pytest.raises(DeviceError, match='"gpu-1" is not on this node, which has gpu-0, gpu-4;'):
        driver.prepare(driver.api.add("gpu-1"))


def test_a_device_of_another_pool_is_refused(driver: Driver) -> None:
    with pytest.raises(ConfigError, match='is in pool "node-2", and this node serves pool'):
        driver.prepare(driver.api.add("gpu-1", pool="node-2"))


def test_a_gpu_in_mig_mode_is_refused_without_admin_access(driver: Driver) -> None:
    driver.gpus.inventory = make.inventory(make.gpu(1, mig_mode=MigMode.ENABLED))
    ref = driver.api.add("gpu-1")
    with pytest.raises(DeviceError, match='"gpu-1" is in MIG mode and cannot be used as a whole'):
        driver.prepare(ref)
    driver.api.results(ref)[0]["adminAccess"] = True
    assert len(driver.prepare(ref)) == 1


def test_a_wrong_config_is_reported_before_gpus_are_looked_up(driver: Driver) -> None:
    driver.gpus.inventory = make.inventory(make.gpu(7))
    ref = driver.api.add("gpu-1", configs=[make.config(sharingg={})])
    with pytest.raises(ConfigError, match=r"^spec\.devices\.config\[0\] of the claim: unknown f"):
        driver.prepare(ref)


def test_a_damaged_record_is_put_aside_and_the_claim_prepared_again(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    answer = driver.prepare(ref)
    file = driver.plugin / "claims" / f"{ref.uid}.json"
    for count in (1, 2):
        file.write_bytes(file.read_bytes()[:-9])
        assert driver.prepare(ref) == answer
        assert driver.claims.ledger.quarantined == count
    aside = sorted(path.name for path in (driver.plugin / "quarantine").iterdir())
    assert aside == [f"{ref.uid}.json", f"{ref.uid}.json.1"]


def test_a_claim_with_a_damaged_record_is_unprepared(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    driver.prepare(ref)
    (driver.plugin / "claims" / f"{ref.uid}.json").write_text("{}")
    driver.unprepare(ref)
    assert not driver.specs.exists(ref.uid)
    newcomer = driver.api.add("gpu-1", uid="new", name="new")
    driver.prepare(newcomer)


def test_a_disk_that_cannot_be_written_is_an_error_of_that_claim(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    folder = driver.plugin / "claims"
    folder.rmdir()
    folder.write_text("no folder")
    with pytest.raises(StateError, match="check the free space and the permissions"):
        driver.prepare(ref)
    folder.unlink()
    folder.mkdir()
    driver.prepare(ref)
