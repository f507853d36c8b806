"""Records, CDI specs and the API server's claims, brought back in line."""

import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

import make
from dra_driver.claims.model.claim import PodName
from dra_driver.claims.model.record import RecordState
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from dra_driver.claims.reconcile.still_running import PodHolder
from dra_driver.devices.holders import Holder
from dra_driver.devices.model import Inventory
from dra_driver.errors import DeviceError, DriverError, TransientError, UnavailableError
from dra_driver.sharing.steps import TimeSlice
from worlds.configs import MPS, PATIENCE
from worlds.driver import Driver
from worlds.process import eventually


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_missing_specs_are_written_and_others_left_alone(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    driver.prepare(ref)
    (file,) = (driver.root / "cdi").iterdir()
    orphan = file.with_name(file.name.replace(ref.uid, "orphan"))
    file.rename(orphan)
    foreign = file.with_name("nvidia.com-gpu.yaml")
    foreign.touch()
    assert driver.reconciler(ReconcileTiming()).mend() == {"orphan"}
    assert sorted(driver.root.joinpath("cdi").iterdir()) == sorted([file, orphan, foreign])


def test_specs_that_somebody_deleted_are_written_again_by_the_running_thread(
    driver: Driver,
) -> None:
    ref = driver.api.add("gpu-1")
    driver.prepare(ref)
    reconciler = driver.reconciler(ReconcileTiming(retry=0.05))
    reconciler.start()
    try:
        for _ in range(3):
            driver.specs.delete(ref.uid)
            eventually(lambda: driver.specs.exists(ref.uid), "the spec to be back")
    finally:
        reconciler.stop(10)


def test_a_failed_cleanup_is_retried_by_the_running_thread(driver: Driver) -> None:
    ref = driver.api.add("gpu-1", configs=[MPS])
    driver.prepare(ref)
    looked = threading.Event()
    driver.api.trouble = lambda _: looked.set()
    reconciler = driver.reconciler(ReconcileTiming(retry=0.05))
    reconciler.start()
    try:
        assert looked.wait(PATIENCE)  # at all claims, which comes again in ten minutes only
        driver.sharing.refuse_undo = DeviceError("the GPU does not answer")
        driver.unprepare(ref)
        assert driver.claims.ledger.read(ref.uid) is not None
        driver.sharing.refuse_undo = None
        eventually(lambda: driver.left() == [], "everything to be taken back")
    finally:
        reconciler.stop(10)


def test_cleanup_on_a_former_gpu_is_retried_for_a_moved_claim(driver: Driver) -> None:
    ref = driver.api.add("gpu-1", configs=[MPS])
    driver.prepare(ref)
    driver.sharing.refuse_undo = DeviceError("the GPU does not answer")
    driver.unprepare(ref)
    driver.api.add("gpu-2")
    driver.prepare(ref)
    reconciler = driver.reconciler(ReconcileTiming())
    assert reconciler.mend() == {ref.uid}
    driver.sharing.refuse_undo = None
    assert not reconciler.mend()
    assert driver.shared == []


def test_a_spec_that_no_longer_fits_is_written_again(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    driver.prepare(ref)
    driver.gpus.inventory = make.inventory(replace(make.gpu(1), minor=6))
    assert not driver.reconciler(ReconcileTiming()).mend()
    assert driver.nodes(ref) == ["/dev/nvidia6"]


def test_half_a_record_is_removed(driver: Driver) -> None:
    (driver.plugin / "claims" / ".some-uid.json.tmp").write_text('{"version":3,')
    assert not driver.reconciler(ReconcileTiming()).mend()
    assert driver.left() == []


def test_a_damaged_record_is_put_aside_and_its_spec_stays(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    driver.prepare(ref)
    (driver.plugin / "claims" / f"{ref.uid}.json").write_bytes(b"\0" * 100)
    assert driver.reconciler(ReconcileTiming()).mend() == {ref.uid}
    assert driver.specs.exists(ref.uid)
    assert driver.claims.ledger.quarantined == 1
    driver.unprepare(ref)
    assert driver.left() == []


def test_a_gpu_that_is_away_is_tried_again_and_hides_no_other_claim(driver: Driver) -> None:
    away = driver.api.add("gpu-1", uid="a", name="a")
    here = driver.api.add("gpu-2", uid="b", name="b")
    for ref in (away, here):
        driver.prepare(ref)
        driver.specs.delete(ref.uid)
    whole = driver.gpus.inventory
    driver.gpus.inventory = make.inventory(make.gpu(2))
    reconciler = driver.reconciler(ReconcileTiming())
    assert reconciler.mend()
    assert driver.nodes(here) == ["/dev/nvidia2"]
    driver.gpus.inventory = whole
    assert not reconciler.mend()
    assert driver.nodes(away) == ["/dev/nvidia1"]


def test_a_spec_of_a_former_boot_is_deleted_and_the_record_kept(tmp_path: Path) -> None:
    before = Driver(tmp_path)
    ref = before.api.add("gpu-1")
    before.prepare(ref)
    after = Driver(tmp_path, boot_id="boot-2", api=before.api)
    assert not after.reconciler(ReconcileTiming()).mend()
    assert not after.specs.exists(ref.uid)
    assert after.claims.ledger.read(ref.uid) is not None
    before.close()
    after.close()


@pytest.mark.parametrize("state", [RecordState.PREPARING, RecordState.RELEASED])
def test_half_done_work_of_a_former_boot_is_forgotten(tmp_path: Path, state: RecordState) -> None:
    driver = Driver(tmp_path, boot_id="boot-2")
    step = TimeSlice(devices=(make.device(make.gpu(0)),), card="u")
    driver.claims.ledger.write(make.record(state=state, steps=(step,)))
    driver.sharing.refuse_undo = True
    assert not driver.reconciler(ReconcileTiming()).mend()
    assert driver.left() == []
    driver.close()


@pytest.mark.parametrize("loss", ["deleted", "replaced", "deallocated", "moved"])
def test_a_claim_that_stays_gone_is_unprepared(driver: Driver, loss: str) -> None:
    ref = driver.api.add("gpu-1", configs=[MPS])
    driver.prepare(ref)
    match loss:
        case "deleted":
            driver.api.claims.clear()
        case "replaced":
            driver.api.add("gpu-1", uid="other")
        case "deallocated":
            del driver.api.claims["default", "claim"]["status"]["allocation"]
        case "moved":
            driver.api.results(ref)[0]["pool"] = "node-2"
    clock = Clock()
    reconciler = driver.reconciler(ReconcileTiming(grace=90.0), clock)
    for now in (1000.0, 1089.0):
        clock.now = now
        assert reconciler.compare() == {ref.uid}
        assert driver.claims.ledger.read(ref.uid), "the kubelet still has time to do it"
    clock.now = 1090.0
    assert not reconciler.compare()
    assert driver.left() == []


@pytest.mark.parametrize("loss", ["deleted", "replaced", "deallocated"])
@pytest.mark.parametrize("sign", ["kubelet", "group", "holder", "no kubelet", "no groups"])
def test_a_claim_that_is_gone_keeps_its_devices_while_anything_may_run_with_it(
    driver: Driver, loss: str, sign: str
) -> None:
    ref = driver.api.add("gpu-1", configs=[MPS])
    driver.api.claims["default", "claim"]["status"]["reservedFor"] = [
        {"resource": "pods", "name": name, "uid": f"uid-{name}"} for name in ("first", "last")
    ]
    driver.prepare(ref)
    if loss == "deallocated":
        del driver.api.claims["default", "claim"]["status"]["allocation"]
    else:
        driver.api.claims.clear()
    if loss == "replaced":
        driver.api.add("gpu-1", uid="other")
    group = driver.root / "cgroup/kubepods/burstable/poduid-last"
    pods, gpu = driver.root / "cgroup/kubepods", driver.gpus.inventory.gpus[1].uuid
    match sign:
        case "kubelet":
            driver.pods_running[ref.uid] = [PodName(namespace="default", name="other-pod")]
            said = "the kubelet still runs it in pod default/other-pod"
        case "group":
            group.mkdir()
            said = "pod default/last still has its control group"
        case "holder":
            driver.pod_holders[gpu] = [holder("uid-stranger", time.time() + 1)]
            said = f"python3 (PID 7) of pod UID uid-stranger has {gpu} open"
        case "no kubelet":
            driver.kubelet_trouble = TransientError("the kubelet does not say")
            said = "the kubelet does not say"
        case _:
            pods.rename(pods.with_name("elsewhere"))
            said = "the control groups of the node's pods (kubepods) are not seen"
    before = driver.left()
    reconciler = driver.reconciler(ReconcileTiming(grace=0.0))
    for _ in range(3):
        assert reconciler.compare() == {ref.uid}
    assert driver.left() == before
    ((name, why),) = driver.kept
    assert (name, why.endswith(f", but {said}")) == ("claim", True)
    with pytest.raises(TransientError, match="is free when the kubelet has ended that"):
        driver.prepare(driver.api.add("gpu-1", uid="uid-next", name="next"), 0.2)
    driver.pods_running, driver.pod_holders, driver.kubelet_trouble = {}, {}, None
    if group.exists():
        group.rmdir()
    if not pods.exists():
        pods.with_name("elsewhere").rename(pods)
    assert not reconciler.compare()
    assert driver.left() == []


def holder(pod_uid: str, began: float) -> PodHolder:
    return PodHolder(process=Holder(pid=7, name="python3"), pod_uid=pod_uid, began=began)


def test_monitoring_and_other_pods_do_not_keep_a_gone_claim(driver: Driver) -> None:
    ref, other = driver.api.add("gpu-1"), driver.api.add("gpu-2", uid="uid-2", name="other")
    driver.api.claims["default", "other"]["status"]["reservedFor"] = [
        {"resource": "pods", "name": "pod-2", "uid": "uid-pod-2"}
    ]
    driver.prepare(ref)
    driver.prepare(other)
    del driver.api.claims["default", "claim"]
    driver.pod_holders[driver.gpus.inventory.gpus[1].uuid] = [
        holder("uid-exporter", time.time() - 3600),
        holder("uid-pod-2", time.time() + 1),
    ]
    assert not driver.reconciler(ReconcileTiming(grace=0.0)).compare()
    assert driver.claims.ledger.read(ref.uid) is None


def test_a_claim_in_use_is_never_touched(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    driver.prepare(ref)
    before = driver.left()
    reconciler = driver.reconciler(ReconcileTiming(grace=0.0))
    assert not reconciler.mend()
    assert not reconciler.compare()
    assert driver.left() == before


@pytest.mark.parametrize("error", [UnavailableError("away"), DriverError("who are you?")])
def test_an_unclear_api_answer_unprepares_nothing(driver: Driver, error: DriverError) -> None:
    ref = driver.api.add("gpu-1")
    driver.prepare(ref)

    def trouble(_: str) -> None:
        raise error

    driver.api.trouble = trouble
    assert driver.reconciler(ReconcileTiming(grace=0.0)).compare() == {ref.uid}
    assert driver.claims.ledger.read(ref.uid)


def test_an_unreachable_api_server_is_asked_twice_in_all(driver: Driver) -> None:
    refs = [driver.api.add(f"gpu-{n}", uid=f"uid-{n}", name=f"claim-{n}") for n in range(3)]
    for ref in refs:
        driver.prepare(ref)

    def away(_: str) -> None:
        raise UnavailableError("away")

    driver.api.asked.clear()
    driver.api.trouble = away
    assert driver.reconciler(ReconcileTiming()).compare() == {ref.uid for ref in refs}
    assert len(driver.api.asked) == 2


def test_an_api_error_on_one_claim_does_not_keep_others(driver: Driver) -> None:
    refs = [driver.api.add(f"gpu-{n}", uid=f"uid-{n}", name=f"claim-{n}") for n in range(4)]
    for ref in refs:
        driver.prepare(ref)

    def fails(name: str) -> None:
        if name in {"claim-0", "claim-1"}:
            raise UnavailableError("Internal error occurred: unable to transform key")

    driver.api.trouble = fails
    for ref in refs[2:]:
        del driver.api.claims[ref.namespace, ref.name]
    reconciler = driver.reconciler(ReconcileTiming(grace=0.0))
    for _ in range(3):
        reconciler.compare()
    left = {one.ref.uid for one in driver.claims.ledger.readable()}
    assert left == {refs[0].uid, refs[1].uid}


def test_a_claim_that_comes_back_is_not_counted_as_gone(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    driver.prepare(ref)
    whole = dict(driver.api.claims)
    clock = Clock()
    reconciler = driver.reconciler(ReconcileTiming(grace=90.0), clock)
    for now, claims in ((1000.0, {}), (1050.0, whole), (1095.0, {}), (1180.0, {})):
        clock.now, driver.api.claims = now, claims
        reconciler.compare()
    assert driver.claims.ledger.read(ref.uid)


def test_a_claim_prepared_again_meanwhile_is_left_alone(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    driver.prepare(ref)
    driver.api.results(ref)[0]["device"] = "gpu-2"
    stale = driver.claims.ledger.read(ref.uid)
    assert stale is not None
    driver.prepare(ref)
    assert not driver.claims.release.discard(stale, time.monotonic() + PATIENCE)
    assert driver.nodes(ref) == ["/dev/nvidia2"]


def test_a_claim_the_kubelet_is_busy_with_is_left_for_later(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    driver.prepare(ref)
    other = Driver(driver.root, api=driver.api)
    reconciler = other.reconciler(ReconcileTiming(lock_timeout=0.01))
    with driver.locks.claim(ref.uid, time.monotonic() + PATIENCE):
        assert reconciler.mend()
        assert reconciler.compare()
    assert not reconciler.mend()
    other.close()


def test_the_thread_repairs_and_compares_until_stopped(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    driver.prepare(ref)
    driver.specs.delete(ref.uid)
    whole = driver.gpus.inventory
    driver.gpus.inventory = Inventory(driver_version=None, cuda_version=None)
    compared = threading.Event()
    driver.api.trouble = lambda _: compared.set()
    reconciler = driver.reconciler(ReconcileTiming(period=0.01, retry=0.01))
    reconciler.start()
    assert compared.wait(PATIENCE)
    compared.clear()
    driver.gpus.inventory = whole
    assert compared.wait(PATIENCE)
    reconciler.stop(PATIENCE)
    compared.clear()
    reconciler.mend()
    assert not compared.is_set()
    assert not [one for one in threading.enumerate() if one.name == "claim-reconciler"]
