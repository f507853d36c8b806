"""The files of records: made, damaged, of a newer version, and on a disk that refuses."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

import make
from dra_driver.admin.stored import stored_records
from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.model.record import RecordState, encode
from dra_driver.claims.state.ledger import Ledger
from dra_driver.devices.model import GpuUuid
from dra_driver.errors import ConfigError, StateError, VersionError
from dra_driver.host.envelope import seal, unseal

RECORD = make.record()
UID = RECORD.ref.uid


@pytest.fixture
def store(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path, boot_id="boot-1", version="1.2.3")


def path_of(folder: Path, uid: str = UID) -> Path:
    return folder / "claims" / f"{uid}.json"


def newer(data: bytes) -> bytes:
    return data.replace(b'"version":3', b'"version":4')


def with_a_new_step(data: bytes) -> bytes:
    return seal({**unseal(data), "steps": [{"step": "later"}]})


def permissions(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_store_on_a_disk_that_could_not_be_written_makes_its_folders_later(
    tmp_path: Path,
) -> None:
    place = tmp_path / "driver"
    place.write_text("in the way")
    store = Ledger(place, boot_id="boot-1")
    with pytest.raises(StateError, match=f"cannot write {path_of(place)}: Not a directory; check"):
        store.write(RECORD)
    place.unlink()
    assert store.uids() == set()
    store.write(RECORD)
    assert Ledger(place, boot_id="boot-1").peek(UID) == RECORD
    assert permissions(path_of(place)) == 0o600
    assert {permissions(path_of(place).parent), permissions(place / "quarantine")} == {0o700}


def test_a_record_without_content_is_deleted_and_no_damage(tmp_path: Path, store: Ledger) -> None:
    path_of(tmp_path).touch()
    assert store.peek(UID) is None
    assert path_of(tmp_path).exists(), "to look changes nothing"
    assert store.read(UID) is None
    assert (store.uids(), store.quarantined) == (set(), 0)
    assert list((tmp_path / "quarantine").iterdir()) == []


def test_several_damaged_records_are_kept_for_inspection(tmp_path: Path, store: Ledger) -> None:
    with capture_logs() as logs:
        for number in range(3):
            path_of(tmp_path).write_text(f"damage {number}")
            assert store.read(UID) is None
            assert store.quarantined == number + 1
    reason = "it is cut off, or not a file of this driver"
    assert [log["reason"] for log in logs] == [reason] * 3
    kept = sorted((tmp_path / "quarantine").iterdir())
    assert [path.name for path in kept] == [f"{UID}.json", f"{UID}.json.1", f"{UID}.json.2"]
    assert [path.read_text() for path in kept] == [f"damage {number}" for number in range(3)]
    assert set(stored_records(tmp_path).damaged) == {path.name for path in kept}


def test_a_record_of_another_claim_is_damaged(tmp_path: Path, store: Ledger) -> None:
    path_of(tmp_path, "other").write_bytes(encode(RECORD, "1.2.3"))
    assert store.peek(ClaimUid("other")) is None
    with capture_logs() as logs:
        assert store.read(ClaimUid("other")) is None
    assert [log["reason"] for log in logs] == [f"it is the record of claim UID {UID}"]
    assert [path.name for path in (tmp_path / "quarantine").iterdir()] == ["other.json"]
    (reason,) = stored_records(tmp_path).damaged.values()
    assert reason == f"it is the record of claim UID {UID}"


@pytest.mark.parametrize("change", [newer, with_a_new_step])
def test_a_record_of_a_newer_driver_stays_and_says_which(
    tmp_path: Path, store: Ledger, change: Callable[[bytes], bytes]
) -> None:
    store.write(RECORD)
    other = replace(RECORD, ref=replace(RECORD.ref, uid=ClaimUid("other")))
    store.write(other)
    path = path_of(tmp_path)
    path.write_bytes(change(path.read_bytes()))
    for look in (store.read, store.peek):
        with pytest.raises(
            VersionError,
            match=rf"prepared claim UID {UID} \(.*; version 1\.2\.3 of the driver wrote it\); its "
            rf"record {path} and",
        ):
            look(UID)
    assert [one.ref.uid for one in store.readable()] == ["other"]
    stored = stored_records(tmp_path)
    assert (stored.records, stored.newer) == ((other,), {path.name})
    assert stored.damaged[path.name].startswith("not damaged, but of a newer version: ")


def test_a_record_whose_release_is_noted_is_released_until_it_is_written(
    tmp_path: Path, store: Ledger
) -> None:
    store.write(RECORD)
    store.release(UID)
    assert permissions(path_of(tmp_path)) == 0o400
    for found in (store.peek(UID), stored_records(tmp_path).records[0]):
        assert found is not None
        assert found.state is RecordState.RELEASED
    store.write(RECORD)
    assert store.peek(UID) == RECORD
    store.release(ClaimUid("nobody"))


def test_half_a_record_counts_as_one_and_goes_with_it(tmp_path: Path, store: Ledger) -> None:
    half = tmp_path / "claims" / f".{UID}.json.tmp"
    half.write_text("{")
    for name in ("other.txt", ".hidden", "-.json"):
        (tmp_path / "claims" / name).touch()
    assert store.uids() == {UID}
    other = replace(RECORD, ref=replace(RECORD.ref, uid=ClaimUid("other")))
    store.write(other)
    stored = stored_records(tmp_path)
    assert (stored.records, stored.damaged) == ((other,), {})
    store.delete(other.ref.uid)
    store.delete(UID)
    assert (store.uids(), half.exists()) == (set(), False)


def test_a_record_in_memory_is_forgotten_with_its_file(store: Ledger) -> None:
    store.write(RECORD)
    first = store.peek(UID)
    assert store.peek(UID) is first
    store.delete(UID)
    assert (store.peek(UID), store._known) == (None, {})


def block(folder: Path) -> None:
    path_of(folder).mkdir()
    (path_of(folder) / "in-the-way").touch()


def loop(folder: Path) -> None:
    path_of(folder).symlink_to(path_of(folder))


def damage(folder: Path) -> None:
    path_of(folder).write_text("damaged")
    (folder / "quarantine").rmdir()
    (folder / "quarantine").touch()


@pytest.mark.parametrize(
    ("obstacle", "call", "words"),
    [
        (block, lambda store: store.read(UID), "read"),
        (block, lambda store: store.is_about(GpuUuid("GPU-1")), "read"),
        (block, lambda store: store.write(RECORD), "write"),
        (block, lambda store: store.delete(UID), "delete"),
        (loop, lambda store: store.release(UID), "change"),
        (damage, lambda store: store.read(UID), "quarantine"),
    ],
)
def test_a_disk_error_names_the_record(
    tmp_path: Path,
    store: Ledger,
    obstacle: Callable[[Path], None],
    call: Callable[[Ledger], object],
    words: str,
) -> None:
    obstacle(tmp_path)
    with pytest.raises(
        StateError, match=rf"cannot {words} {path_of(tmp_path)}: .*; check the free"
    ):
        call(store)
    assert store.quarantined == 0


def test_an_unreadable_record_blocks_only_the_gpus_of_its_marks(
    tmp_path: Path, store: Ledger
) -> None:
    other = make.record(make.gpu(1), uid="other")
    store.write(other)
    (uuid,), (blocked,) = other.held_gpus, RECORD.held_gpus
    block(tmp_path)
    assert store.records_on(uuid) == [other]
    assert store.records_on(blocked) == [], "nobody can know"
    (path_of(tmp_path) / "in-the-way").unlink()
    path_of(tmp_path).rmdir()
    store.write(RECORD)
    assert store.records_on(blocked) == [RECORD]
    path_of(tmp_path).unlink()
    block(tmp_path)
    assert store.records_on(uuid) == [other]
    with pytest.raises(StateError, match="cannot read"):
        store.records_on(blocked)


def test_an_unlistable_folder_does_not_count_as_empty(tmp_path: Path, store: Ledger) -> None:
    folder = tmp_path / "claims"
    folder.rmdir()
    folder.symlink_to(folder)
    for look in (store.uids, lambda: stored_records(tmp_path)):
        with pytest.raises(StateError, match=f"claims in {folder}: Too many levels of symb"):
            look()


@pytest.mark.parametrize("uid", ["", ".", "../x", "a/b", "x" * 129, "-a"])
def test_no_uid_leads_out_of_the_folder(store: Ledger, uid: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid UID: it must have 1 to 128 letters"):
        store.read(ClaimUid(uid))
