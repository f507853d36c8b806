"""Records of earlier boots, or damaged, and those who only look at them while others write."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

import make
from dra_driver.admin.stored import stored_records
from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.model.record import RecordState
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from dra_driver.errors import StateError
from worlds.configs import CONFIGS
from worlds.driver import Driver

GPU = make.gpu(1).uuid


def damaged(driver: Driver) -> tuple[ClaimRef, Path]:
    """A prepared claim whose record is damaged."""
    ref = driver.api.add("gpu-1", uid="damaged", name="damaged")
    driver.prepare(ref)
    path = driver.plugin / "claims" / f"{ref.uid}.json"
    path.write_bytes(b"\0" * 100)
    return ref, path


def test_a_damaged_record_is_moved_only_under_its_lock(driver: Driver) -> None:
    _, path = damaged(driver)
    with driver.locks.claim("damaged", deadline=0.0):  # somebody is about to write it again
        driver.prepare(driver.api.add("gpu-1", uid="other", name="other"))
        assert driver.claims.ledger.peek(ClaimUid("damaged")) is None
        assert not driver.claims.release.count_pending()
        assert path.exists()
        assert driver.claims.ledger.quarantined == 0
    driver.reconciler(ReconcileTiming()).mend()
    assert not path.exists()
    assert driver.claims.ledger.quarantined == 1


def test_a_record_is_read_again_after_a_change(driver: Driver) -> None:
    ref = driver.api.add("gpu-1", uid="seen", name="seen")
    driver.prepare(ref)
    records = driver.claims.ledger
    first = records.peek(ref.uid)
    assert first is not None
    assert records.peek(ref.uid) is first  # not read again

    records.release(ref.uid)  # changes the file's mode alone
    released = records.peek(ref.uid)
    assert released is not None
    assert released.state is RecordState.RELEASED

    records.write(first)
    assert records.peek(ref.uid) == first
    (driver.plugin / "claims" / f"{ref.uid}.json").write_bytes(b"\0" * 100)
    assert records.peek(ref.uid) is None
    records.write(first)
    assert records.peek(ref.uid) == first
    records.delete(ref.uid)
    assert records.peek(ref.uid) is None


def test_a_thousand_records_are_read_once_each(driver: Driver) -> None:
    ref = driver.api.add("gpu-1", uid="seen", name="seen")
    driver.prepare(ref)
    records = driver.claims.ledger
    first = records.peek(ref.uid)
    assert first is not None
    for number in range(1000):
        other = replace(ref, uid=ClaimUid(f"other-{number}"))
        records.write(replace(first, ref=other))
    once, again = list(records.readable()), list(records.readable())
    assert len(once) == 1001
    assert all(one is other for one, other in zip(once, again, strict=True))


@pytest.mark.parametrize("mode", CONFIGS)
def test_changes_of_another_process_are_read(driver: Driver, mode: str) -> None:
    other = Driver(driver.root, api=driver.api)
    ref = driver.api.add("gpu-1", uid="seen", name="seen", configs=CONFIGS[mode])
    driver.prepare(ref)
    mine, theirs = driver.claims.ledger, other.claims.ledger
    first = mine.read(ref.uid)
    assert first is not None
    assert theirs.read(ref.uid) == first

    theirs.write(replace(first, boot_id="boot-2"))
    assert mine.read(ref.uid) == theirs.peek(ref.uid) != first
    mine.write(first)
    assert theirs.read(ref.uid) == mine.peek(ref.uid) == first
    theirs.release(ref.uid)
    found = mine.read(ref.uid)
    assert found is not None
    assert found.state is RecordState.RELEASED
    theirs.delete(ref.uid)
    assert mine.read(ref.uid) is None
    other.close()


def test_an_unreadable_record_hides_no_other(driver: Driver) -> None:
    bad, good = (driver.api.add(f"gpu-{n}", uid=f"uid-{n}", name=f"claim-{n}") for n in range(2))
    for ref in (bad, good):
        driver.prepare(ref)
    path = driver.plugin / "claims" / f"{bad.uid}.json"
    data = path.read_bytes()
    path.unlink()
    path.mkdir()
    records = driver.claims.ledger
    with capture_logs() as logs:
        for _ in range(2):
            assert [one.ref.uid for one in records.readable()] == [good.uid]
        path.rmdir()
        path.write_bytes(data)
        assert [one.ref.uid for one in records.readable()] == [bad.uid, good.uid]
        path.unlink()
        path.mkdir()
        assert [one.ref.uid for one in records.readable()] == [good.uid]
    assert [log["event"] for log in logs] == ["record not readable"] * 2
    stored = stored_records(driver.plugin)
    assert [record.ref.uid for record in stored.records] == [good.uid]
    assert stored.damaged[path.name].startswith(f"cannot read {path}: it is not a plain file; ")
    assert not driver.claims.release.count_pending()
    assert driver.claims.ledger.anything_held()
    driver.unprepare(good)
    with pytest.raises(StateError):  # what the other holds is not known
        driver.claims.ledger.anything_held()


def test_after_a_reboot_a_claim_gets_the_card_that_it_had(tmp_path: Path) -> None:
    before = Driver(tmp_path)
    refs = [before.api.add(f"gpu-{n}", uid=f"uid-{n}", name=f"c{n}") for n in (1, 2)]
    one, two = make.gpu(1), make.gpu(2)
    first = [before.prepare(ref) for ref in refs]
    after = Driver(
        tmp_path, replace(one, minor=2), replace(two, minor=1), boot_id="boot-2", api=before.api
    )
    assert [after.prepare(ref) for ref in refs] == first
    assert [after.nodes(ref) for ref in refs] == [["/dev/nvidia2"], ["/dev/nvidia1"]]
    for ref in refs:
        after.unprepare(ref)
    new = after.api.add("gpu-1", uid="new", name="new")
    after.prepare(new)
    assert after.nodes(new) == ["/dev/nvidia1"]
    before.close()
    after.close()


def test_after_a_reboot_a_card_in_place_of_a_lost_one_is_known_by_its_name(tmp_path: Path) -> None:
    before = Driver(tmp_path, make.gpu(1))
    ref = before.api.add("gpu-1")
    before.prepare(ref)
    new = replace(make.gpu(2), minor=1)
    after = Driver(tmp_path, new, boot_id="boot-2", api=before.api)
    (device,) = after.prepare(ref)
    assert device.device.gpu == new.uuid
    before.close()
    after.close()


def test_a_record_under_a_wrong_name_is_put_aside(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    driver.prepare(ref)
    folder = driver.plugin / "claims"
    (folder / f"{ref.uid}.json").rename(folder / "other.json")
    assert driver.claims.ledger.read(ClaimUid("other")) is None
    assert driver.claims.ledger.quarantined == 1
