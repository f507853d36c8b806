"""CDI specs without a record: deleted only once the kubelet has named no pod with them for long."""

import threading
from typing import Any

import pytest

from dra_driver.claims.model.claim import ClaimRef, ClaimUid, PodName
from dra_driver.claims.reconcile.reconciler import Reconciler, ReconcileTiming
from dra_driver.errors import StateError, TransientError
from worlds.configs import MPS, PATIENCE
from worlds.driver import Driver

GRACE = 90.0
POD = PodName(namespace="default", name="pod")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def orphaned(driver: Driver, **facts: Any) -> ClaimRef:
    """A claim in use whose record is lost."""
    ref = driver.api.add("gpu-1", **facts)
    driver.prepare(ref)
    (driver.plugin / "claims" / f"{ref.uid}.json").write_bytes(b"")
    driver.pods_running[ref.uid] = [POD]
    return ref


def looked(reconciler: Reconciler, clock: Clock) -> None:
    """Let it look again and again, for longer than the grace."""
    for _ in range(4):
        reconciler.mend()
        reconciler.compare()
        clock.now += GRACE


@pytest.fixture(params=[False, True], ids=["", "sharing that lives by itself"])
def used(request: pytest.FixtureRequest, driver: Driver) -> tuple[Driver, ClaimRef]:
    driver.sharing.survives_reboot = request.param
    return driver, orphaned(driver, configs=[MPS])


@pytest.mark.parametrize("word", ["it runs", "it cannot be asked"])
@pytest.mark.parametrize("end", ["unprepared", "gone"])
def test_a_claim_in_use_keeps_its_devices_without_a_record(
    used: tuple[Driver, ClaimRef], word: str, end: str
) -> None:
    (driver, ref), clock = used, Clock()
    driver.api.claims.clear()  # which says nothing of what runs
    if word == "it cannot be asked":
        driver.pods_running.clear()
        driver.kubelet_trouble = TransientError("no socket")
    reconciler = driver.reconciler(ReconcileTiming(grace=GRACE), clock)
    looked(reconciler, clock)
    assert driver.claims.ledger.read(ref.uid) is None
    assert driver.specs.exists(ref.uid)
    assert not driver.sharing.survives_reboot or driver.shared
    driver.kubelet_trouble = None
    driver.pods_running.clear()
    if end == "unprepared":
        driver.unprepare(ref)
    else:
        assert reconciler.mend() == {ref.uid}
        clock.now += GRACE - 1
        assert reconciler.mend({ref.uid}) == {ref.uid}
        assert driver.specs.exists(ref.uid)
        clock.now += 1
        assert reconciler.mend({ref.uid}) == set()
    assert not driver.specs.exists(ref.uid)
    assert not (driver.sharing.survives_reboot and driver.shared)
    assert list((driver.plugin / "device-metadata").iterdir()) == []


def test_a_claim_used_by_a_pod_again_restarts_the_wait(driver: Driver) -> None:
    ref, clock = orphaned(driver), Clock()
    reconciler = driver.reconciler(ReconcileTiming(grace=GRACE), clock)
    for running in ([], [POD], []):
        driver.pods_running[ref.uid] = running
        assert reconciler.mend() == {ref.uid}
        clock.now += GRACE - 1
    assert driver.specs.exists(ref.uid)


def test_a_spec_that_cannot_be_deleted_keeps_no_other_from_it(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs, clock = [orphaned(driver, uid=f"uid-{n}", name=f"claim-{n}") for n in range(1)], Clock()
    other = driver.api.add("gpu-0", uid="other", name="other")
    driver.prepare(other)
    (driver.plugin / "claims" / f"{other.uid}.json").unlink()
    refs.append(other)
    driver.pods_running.clear()
    delete = driver.claims.specs.delete

    def refuses(uid: ClaimUid) -> None:
        if uid == refs[0].uid:
            raise StateError("the disk refused")
        delete(uid)

    monkeypatch.setattr(driver.claims.specs, "delete", refuses)
    looked(driver.reconciler(ReconcileTiming(grace=GRACE), clock), clock)
    assert [driver.specs.exists(ref.uid) for ref in refs] == [True, False]


def test_a_spec_whose_record_is_there_again_stays(driver: Driver) -> None:
    ref, clock = driver.api.add("gpu-1"), Clock()
    driver.prepare(ref)
    file = driver.plugin / "claims" / f"{ref.uid}.json"
    record = file.read_bytes()
    file.unlink()
    reconciler = driver.reconciler(ReconcileTiming(grace=GRACE), clock)
    assert reconciler.mend() == {ref.uid}
    file.write_bytes(record)
    looked(reconciler, clock)
    assert driver.specs.exists(ref.uid)


def test_folders_that_cannot_be_read_at_the_start_end_nothing(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> int:
        raise StateError("the CDI folder cannot be read")

    monkeypatch.setattr(driver.specs, "delete_leftovers", refuse)
    compared = threading.Event()
    driver.prepare(driver.api.add("gpu-1"))
    driver.api.trouble = lambda _: compared.set()
    reconciler = driver.reconciler(ReconcileTiming(period=0.01, retry=0.01))
    reconciler.start()
    assert compared.wait(PATIENCE)
    compared.clear()
    assert compared.wait(PATIENCE), "it goes on"
    reconciler.stop(PATIENCE)
