"""Records, CDI specs and the API server's claims, brought back in line."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

import make
from claims_world import MPS, World
from dra_driver.claims.reconcile import ReconcileTiming
from dra_driver.claims.record import RecordState
from dra_driver.devices.model import Inventory
from dra_driver.errors import DriverError, UnavailableError
from dra_driver.sharing.base import SharingPlan

LONG = 30.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_missing_specs_are_written_and_others_left_alone(world: World) -> None:
    ref = world.api.add("gpu-1")
    world.prepare(ref)
    (file,) = (world.root / "cdi").iterdir()
    orphan = file.with_name(file.name.replace(ref.uid, "orphan"))
    file.rename(orphan)
    foreign = file.with_name("nvidia.com-gpu.yaml")
    foreign.touch()
    assert not world.reconciler(ReconcileTiming()).mend()
    assert sorted(world.root.joinpath("cdi").iterdir()) == sorted([file, orphan, foreign])


def test_a_spec_that_no_longer_fits_is_written_anew(world: World) -> None:
    ref = world.api.add("gpu-1")
    world.prepare(ref)
    world.machine.inventory = make.inventory(replace(make.gpu(1), minor=6))
    assert not world.reconciler(ReconcileTiming()).mend()
    assert world.nodes(ref) == ["/dev/nvidia6"]


def test_half_a_record_is_removed(world: World) -> None:
    (world.plugin / "claims" / ".some-uid.json.tmp").write_text('{"version":1,')
    assert not world.reconciler(ReconcileTiming()).mend()
    assert world.left() == []


def test_a_damaged_record_is_put_aside_and_its_spec_stays(world: World) -> None:
    ref = world.api.add("gpu-1")
    world.prepare(ref)
    (world.plugin / "claims" / f"{ref.uid}.json").write_bytes(b"\0" * 100)
    assert not world.reconciler(ReconcileTiming()).mend()
    assert world.specs.exists(ref.uid)
    assert world.claims.records.quarantined == 1
    world.unprepare(ref)
    assert world.left() == []


def test_a_gpu_that_is_away_is_tried_again_and_hides_no_other_claim(world: World) -> None:
    away = world.api.add("gpu-1", uid="a", name="a")
    here = world.api.add("gpu-2", uid="b", name="b")
    for ref in (away, here):
        world.prepare(ref)
        world.specs.delete(ref.uid)
    whole = world.machine.inventory
    world.machine.inventory = make.inventory(make.gpu(2))
    reconciler = world.reconciler(ReconcileTiming())
    assert reconciler.mend()
    assert world.nodes(here) == ["/dev/nvidia2"]
    world.machine.inventory = whole
    assert not reconciler.mend()
    assert world.nodes(away) == ["/dev/nvidia1"]


def test_a_spec_of_a_former_boot_is_deleted_and_the_record_kept(tmp_path: Path) -> None:
    before = World(tmp_path)
    ref = before.api.add("gpu-1")
    before.prepare(ref)
    after = World(tmp_path, boot_id="boot-2", api=before.api)
    assert not after.reconciler(ReconcileTiming()).mend()
    assert not after.specs.exists(ref.uid)
    assert after.claims.records.read(ref.uid) is not None
    before.close()
    after.close()


@pytest.mark.parametrize("state", [RecordState.PREPARING, RecordState.RELEASED])
def test_half_done_work_of_a_former_boot_is_forgotten(tmp_path: Path, state: RecordState) -> None:
    world = World(tmp_path, boot_id="boot-2")
    plan = SharingPlan(strategy="MPS", gpus=(make.gpu(0).uuid,), changes={"claim": "u"})
    world.claims.records.write(make.record(state=state, plans=(plan,)))
    world.sharing.refuse_undo = True
    assert not world.reconciler(ReconcileTiming()).mend()
    assert world.left() == []
    world.close()


@pytest.mark.parametrize("loss", ["deleted", "replaced", "deallocated", "moved"])
def test_a_claim_that_stays_gone_is_unprepared(world: World, loss: str) -> None:
    ref = world.api.add("gpu-1", configs=[MPS])
    world.prepare(ref)
    match loss:
        case "deleted":
            world.api.claims.clear()
        case "replaced":
            world.api.add("gpu-1", uid="other")
        case "deallocated":
            del world.api.claims["default", "claim"]["status"]["allocation"]
        case "moved":
            world.api.results(ref)[0]["pool"] = "node-2"
    clock = Clock()
    reconciler = world.reconciler(ReconcileTiming(grace=90.0), clock)
    for now in (1000.0, 1089.0):
        clock.now = now
        assert reconciler.compare() == {ref.uid}
        assert world.claims.records.read(ref.uid), "the kubelet still has time to do it"
    clock.now = 1090.0
    assert not reconciler.compare()
    assert world.left() == []


def test_a_claim_in_use_is_never_touched(world: World) -> None:
    ref = world.api.add("gpu-1")
    world.prepare(ref)
    before = world.left()
    reconciler = world.reconciler(ReconcileTiming(grace=0.0))
    assert not reconciler.mend()
    assert not reconciler.compare()
    assert world.left() == before


@pytest.mark.parametrize("error", [UnavailableError("away"), DriverError("who are you?")])
def test_an_api_server_that_does_not_say_is_no_reason_to_unprepare(
    world: World, error: DriverError
) -> None:
    ref = world.api.add("gpu-1")
    world.prepare(ref)

    def trouble(_: str) -> None:
        raise error

    world.api.trouble = trouble
    assert world.reconciler(ReconcileTiming(grace=0.0)).compare() == {ref.uid}
    assert world.claims.records.read(ref.uid)


def test_an_api_server_that_is_away_is_asked_once_for_all_claims(world: World) -> None:
    refs = [world.api.add(f"gpu-{n}", uid=f"uid-{n}", name=f"claim-{n}") for n in range(3)]
    for ref in refs:
        world.prepare(ref)

    def away(_: str) -> None:
        raise UnavailableError("away")

    world.api.asked.clear()
    world.api.trouble = away
    assert world.reconciler(ReconcileTiming()).compare() == {ref.uid for ref in refs}
    assert len(world.api.asked) == 1


def test_a_claim_that_comes_back_is_not_counted_as_gone(world: World) -> None:
    ref = world.api.add("gpu-1")
    world.prepare(ref)
    whole = dict(world.api.claims)
    clock = Clock()
    reconciler = world.reconciler(ReconcileTiming(grace=90.0), clock)
    for now, claims in ((1000.0, {}), (1050.0, whole), (1095.0, {}), (1180.0, {})):
        clock.now, world.api.claims = now, claims
        reconciler.compare()
    assert world.claims.records.read(ref.uid)


def test_a_claim_prepared_anew_meanwhile_is_left_alone(world: World) -> None:
    ref = world.api.add("gpu-1")
    world.prepare(ref)
    world.api.results(ref)[0]["device"] = "gpu-2"
    stale = world.claims.records.read(ref.uid)
    assert stale is not None
    world.prepare(ref)
    assert not world.preparer.discard(stale, deadline=time.monotonic() + LONG)
    assert world.nodes(ref) == ["/dev/nvidia2"]


def test_a_claim_the_kubelet_is_busy_with_is_left_for_later(world: World) -> None:
    ref = world.api.add("gpu-1")
    world.prepare(ref)
    other = World(world.root, api=world.api)
    reconciler = other.reconciler(ReconcileTiming(lock_timeout=0.01))
    with world.locks.claim(ref.uid, time.monotonic() + LONG):
        assert reconciler.mend()
        assert reconciler.compare()
    assert not reconciler.mend()
    other.close()


def test_the_thread_mends_and_compares_until_it_is_stopped(world: World) -> None:
    ref = world.api.add("gpu-1")
    world.prepare(ref)
    world.specs.delete(ref.uid)
    whole = world.machine.inventory
    world.machine.inventory = Inventory(driver_version=None, cuda_version=None)
    compared = threading.Event()
    world.api.trouble = lambda _: compared.set()
    reconciler = world.reconciler(ReconcileTiming(period=0.01, retry=0.01))
    reconciler.start()
    assert compared.wait(LONG)
    compared.clear()
    world.machine.inventory = whole
    assert compared.wait(LONG)
    reconciler.stop(LONG)
    compared.clear()
    reconciler.mend()
    assert not compared.is_set()
    assert not [one for one in threading.enumerate() if one.name == "claim-reconciler"]
