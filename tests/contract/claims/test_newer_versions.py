"""What a newer version of the driver wrote is left to it: after a roll-back, or side by side."""

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

import make
from dra_driver.admin.stored import stored_records
from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from dra_driver.errors import ConflictError, VersionError
from worlds.configs import MPS
from worlds.driver import VERSION, Driver

UID = "newer"


def next_version(path: Path) -> None:
    """Write a file as a version with another envelope would."""
    path.write_bytes(path.read_bytes().replace(b'"version":3', b'"version":4'))


def next_kind(path: Path) -> None:
    """Write a record with a kind of device that is not known here, in the same envelope."""
    payload = json.loads(path.read_bytes())["payload"]
    payload["devices"][0]["device"]["base"]["kind"] = "something-new"
    body = json.dumps(payload).encode()
    digest = sha256(body).hexdigest().encode()
    path.write_bytes(b'{"version":3,"sha256":"%s","payload":%s}\n' % (digest, body))


NEWER = pytest.mark.parametrize("newer", [next_version, next_kind])


def rolled_back(tmp_path: Path, newer: Callable[[Path], None]) -> tuple[Driver, ClaimRef]:
    """A claim that a newer version has prepared; what it shares outlives reboots."""
    driver = Driver(tmp_path, survives_reboot=True)
    ref = driver.api.add("gpu-1", uid=UID, name="newer", configs=[MPS])
    driver.prepare(ref)
    newer(driver.plugin / "claims" / f"{UID}.json")
    return driver, ref


@NEWER
def test_nothing_of_such_a_claim_is_touched(tmp_path: Path, newer: Callable[[Path], None]) -> None:
    driver, ref = rolled_back(tmp_path, newer)
    before, record = driver.left(), (driver.plugin / "claims" / f"{UID}.json").read_bytes()
    driver.api.claims.clear()
    reconciler = driver.reconciler(ReconcileTiming(grace=0.0))
    for _ in range(2):
        assert reconciler.mend() == {ref.uid}
        assert reconciler.compare() == {ref.uid}
    assert driver.left() == before
    assert (driver.plugin / "claims" / f"{UID}.json").read_bytes() == record
    assert driver.set_on(make.gpu(1).uuid) == UID
    assert driver.claims.ledger.quarantined == 0
    assert not driver.claims.release.count_pending()
    driver.close()


@NEWER
def test_its_calls_fail_with_advice(tmp_path: Path, newer: Callable[[Path], None]) -> None:
    driver, ref = rolled_back(tmp_path, newer)
    before = driver.left()
    for call in (driver.prepare, driver.unprepare):
        with pytest.raises(
            VersionError,
            match=r"a newer version of this driver prepared claim UID newer \(it has .*; "
            rf"version {VERSION} of the driver wrote it\); .*install that version again",
        ):
            call(ref)
    assert driver.left() == before
    driver.close()


@NEWER
def test_its_gpus_stay_taken(tmp_path: Path, newer: Callable[[Path], None]) -> None:
    driver, _ = rolled_back(tmp_path, newer)
    other = driver.api.add("gpu-1", uid="other", name="other")
    with pytest.raises(ConflictError, match="is held by another claim: a newer version of this"):
        driver.prepare(other)
    elsewhere = driver.api.add("gpu-2", uid="elsewhere", name="elsewhere")
    assert len(driver.prepare(elsewhere)) == 1
    driver.close()


def test_status_does_not_call_it_damaged(tmp_path: Path) -> None:
    driver, _ = rolled_back(tmp_path, next_version)
    (reason,) = stored_records(driver.plugin).damaged.values()
    assert reason.startswith("not damaged, but of a newer version: it has version 4")
    assert reason.endswith(f"; version {VERSION} of the driver wrote it")
    driver.close()
