"""CDI specs without a record: deleted only once the API server says that the claim is gone."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dra_driver.claims.model.claim import ClaimRef, ClaimUid, PodName
from dra_driver.claims.reconcile.orphans import ReconcileTiming
from dra_driver.claims.reconcile.reconciler import Reconciler
from dra_driver.errors import AccessError, DriverError, StateError, UnavailableError
from worlds.configs import MPS
from worlds.driver import Driver

GRACE = 90.0
LONG = 30.0


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
    assert not driver.reconciler(ReconcileTiming()).mend()
    assert driver.claims.records.read(ref.uid) is None
    return ref


def looked(driver: Driver, reconciler: Reconciler, clock: Clock) -> None:
    """Let it look again and again, for longer than the grace."""
    for _ in range(4):
        reconciler.mend()
        reconciler.compare()
        reconciler.compare_orphans()
        clock.now += GRACE


def test_the_spec_of_a_claim_in_use_stays_although_its_record_is_lost(driver: Driver) -> None:
    ref, clock = orphaned(driver), Clock()
    driver.api.asked.clear()
    looked(driver, driver.reconciler(ReconcileTiming(grace=GRACE), clock), clock)
    assert driver.specs.exists(ref.uid)
    assert driver.api.asked == ["", "claim", "claim", "claim"], "claims are listed once"


@pytest.mark.parametrize("end", ["unprepared", "gone"])
def test_what_lives_by_itself_for_a_claim_in_use_lives_until_its_end(
    tmp_path: Path, end: str
) -> None:
    driver, clock = Driver(tmp_path, survives_reboot=True), Clock()
    ref = orphaned(driver, configs=[MPS])
    reconciler = driver.reconciler(ReconcileTiming(grace=GRACE), clock)
    looked(driver, reconciler, clock)
    assert driver.shared
    if end == "unprepared":
        driver.unprepare(ref)
    else:
        driver.api.claims.clear()
        for _ in range(2):
            reconciler.compare_orphans()
            clock.now += GRACE
    assert driver.left() == []
    driver.close()


def two_orphans(driver: Driver) -> list[ClaimRef]:
    refs = [driver.api.add(f"gpu-{n}", uid=f"uid-{n}", name=f"claim-{n}") for n in range(2)]
    for ref in refs:
        driver.prepare(ref)
        (driver.plugin / "claims" / f"{ref.uid}.json").unlink()
    return refs


@pytest.mark.parametrize(
    "error", [UnavailableError("etcd"), AccessError("a policy", status=403)], ids=repr
)
def test_a_claim_that_cannot_be_asked_for_keeps_no_other_spec(
    driver: Driver, error: DriverError
) -> None:
    refs, clock = two_orphans(driver), Clock()
    reconciler = driver.reconciler(ReconcileTiming(grace=GRACE), clock)
    reconciler.compare_orphans()  # now their names are known

    def trouble(name: str) -> None:
        if name == refs[0].name:
            raise error

    driver.api.trouble = trouble
    driver.api.claims.clear()
    for _ in range(3):
        assert refs[0].uid in reconciler.compare_orphans()
        clock.now += GRACE
    assert [driver.specs.exists(ref.uid) for ref in refs] == [True, False]


def test_a_spec_that_cannot_be_deleted_keeps_no_other_from_it(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs, clock = two_orphans(driver), Clock()
    driver.api.claims.clear()
    delete = driver.claims.specs.delete

    def refuses(uid: ClaimUid) -> None:
        if uid == refs[0].uid:
            raise StateError("the disk refused")
        delete(uid)

    monkeypatch.setattr(driver.claims.specs, "delete", refuses)
    reconciler = driver.reconciler(ReconcileTiming(grace=GRACE), clock)
    for _ in range(3):
        reconciler.compare_orphans()
        clock.now += GRACE
    assert [driver.specs.exists(ref.uid) for ref in refs] == [True, False]


@pytest.mark.parametrize("loss", ["deleted", "replaced"])
@pytest.mark.parametrize("seen_before", [False, True])
def test_the_spec_of_a_claim_that_is_gone_is_deleted_after_a_while(
    driver: Driver, loss: str, seen_before: bool
) -> None:
    ref, clock = orphaned(driver), Clock()
    reconciler = driver.reconciler(ReconcileTiming(grace=GRACE), clock)
    if seen_before:
        assert reconciler.compare_orphans() == set()
    driver.api.claims.clear()
    if loss == "replaced":
        driver.api.add("gpu-1", uid="other")
    assert reconciler.compare_orphans() == {ref.uid}
    clock.now += GRACE - 1
    assert reconciler.compare_orphans({ref.uid}) == {ref.uid}
    assert driver.specs.exists(ref.uid)
    clock.now += 1
    assert reconciler.compare_orphans({ref.uid}) == set()
    assert driver.left() == []


def test_the_spec_of_a_claim_that_is_gone_stays_while_the_kubelet_names_a_pod_with_it(
    driver: Driver,
) -> None:
    ref, clock = orphaned(driver), Clock()
    driver.api.claims.clear()
    driver.pods_running[ref.uid] = [PodName(namespace="default", name="pod")]
    reconciler = driver.reconciler(ReconcileTiming(grace=GRACE), clock)
    before = driver.left()
    looked(driver, reconciler, clock)
    assert driver.left() == before
    driver.pods_running.clear()
    looked(driver, reconciler, clock)
    assert driver.left() == []


@pytest.mark.parametrize(
    "error", [UnavailableError("away"), AccessError("you may not list", status=403)]
)
def test_without_an_api_server_that_says_so_none_is_deleted(
    driver: Driver, error: DriverError
) -> None:
    ref, clock = orphaned(driver), Clock()
    driver.api.claims.clear()

    def trouble(_: str) -> None:
        raise error

    driver.api.trouble = trouble
    looked(driver, driver.reconciler(ReconcileTiming(grace=GRACE), clock), clock)
    assert driver.specs.exists(ref.uid)


def test_a_spec_whose_record_is_there_once_the_api_server_has_answered_stays(
    driver: Driver,
) -> None:
    ref = driver.api.add("gpu-1")
    driver.prepare(ref)
    file = driver.plugin / "claims" / f"{ref.uid}.json"
    record = file.read_bytes()
    file.unlink()
    driver.api.claims.clear()
    driver.api.trouble = lambda _: file.write_bytes(record) and None
    assert driver.reconciler(ReconcileTiming(grace=0.0)).compare_orphans() == set()
    assert driver.specs.exists(ref.uid)


def test_a_spec_that_nvidia_s_driver_wrote_is_left_alone_until_its_claim_is_unprepared(
    driver: Driver,
) -> None:
    ref, clock = driver.api.add("gpu-1", uid="theirs"), Clock()
    theirs = driver.root / "cdi" / "k8s.gpu.nvidia.com-claim_theirs.yaml"
    theirs.parent.mkdir()
    theirs.touch()
    (driver.plugin / "gpus" / "GPU-1").mkdir(parents=True)
    (driver.plugin / "gpus" / "GPU-1" / ref.uid).touch()
    looked(driver, driver.reconciler(ReconcileTiming(grace=GRACE), clock), clock)
    assert theirs.exists()
    driver.unprepare(ref)
    assert not theirs.exists()


def test_leftovers_that_cannot_be_deleted_at_the_start_end_nothing(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[float] = []

    def refuse() -> int:
        tries.append(time.monotonic())
        if len(tries) < 3:
            raise StateError("the CDI folder cannot be read")
        return 0

    monkeypatch.setattr(driver.specs, "delete_leftovers", refuse)
    compared = threading.Event()
    driver.api.trouble = lambda _: compared.set()
    driver.prepare(driver.api.add("gpu-1"))
    compared.clear()
    reconciler = driver.reconciler(ReconcileTiming(period=0.01, retry=0.01))
    reconciler.start()
    assert compared.wait(LONG)
    end = time.monotonic() + LONG
    while len(tries) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    compared.clear()
    assert compared.wait(LONG), "it goes on"
    reconciler.stop(LONG)
    assert len(tries) == 3, "and once it was done it is not done again"
