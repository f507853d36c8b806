"""Killed at any point, the driver is consistent again after the next call or the next start."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import make
from dra_driver.admin.stored import stored_records
from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.model.record import RecordState
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from dra_driver.errors import DeviceError
from worlds.configs import CONFIGS
from worlds.driver import Driver

GPU = make.gpu(1).uuid

Cut = Callable[[str, str], tuple[Driver, ClaimRef]]


@pytest.fixture
def cut(tmp_path: Path) -> Iterator[Cut]:
    """Give the driver that is started after a power cut soon after a prepare, and the claim."""
    drivers: list[Driver] = []

    def start(mode: str, lost: str) -> tuple[Driver, ClaimRef]:
        before = Driver(tmp_path)
        ref = before.api.add("gpu-1", configs=CONFIGS[mode])
        before.prepare(ref)
        before.close()
        record = before.plugin / "claims" / f"{ref.uid}.json"
        record.unlink() if lost == "record" else os.truncate(record, 0)
        shutil.rmtree(tmp_path / "cdi")
        shutil.rmtree(tmp_path / "hardware", ignore_errors=True)  # where nothing was set
        drivers.append(Driver(tmp_path, boot_id="boot-2", api=before.api))
        return drivers[-1], ref

    yield start
    for driver in drivers:
        driver.close()


@pytest.mark.parametrize("mode", CONFIGS)
@pytest.mark.parametrize("lost", ["record", "bytes of the record"])
@pytest.mark.parametrize("after", ["mend", "prepare", "unprepare", "other", "mend and other"])
def test_a_claim_whose_record_a_power_cut_took_is_as_if_it_was_never_prepared(
    cut: Cut, mode: str, lost: str, after: str
) -> None:
    driver, ref = cut(mode, lost)
    other = driver.api.add("gpu-1", uid="other", name="other", configs=CONFIGS[mode])
    assert stored_records(driver.plugin).damaged == {}

    def prepare(one: ClaimRef) -> None:
        driver.prepare(one)
        assert driver.nodes(one) == ["/dev/nvidia1"]
        assert driver.set_on(GPU) == (one.uid if mode == "sharing" else None)
        driver.unprepare(one)

    def mend() -> None:
        assert not driver.reconciler(ReconcileTiming()).mend()
        assert driver.left() == []

    calls: dict[str, Callable[[], object]] = {
        "mend": mend,
        "prepare": lambda: prepare(ref),
        "unprepare": lambda: driver.unprepare(ref),
        "other": lambda: prepare(other),
    }
    for call in after.split(" and "):
        calls[call]()
    driver.unprepare(ref)
    assert driver.left() == []
    assert driver.claims.ledger.quarantined == 0


@pytest.mark.parametrize("mode", CONFIGS)
def test_a_claim_without_lasting_effects_does_not_wait_for_the_disk(
    driver: Driver, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    ref = driver.api.add("gpu-1", configs=CONFIGS[mode])
    driver.prepare(ref)
    driver.unprepare(ref)
    assert synced == []


def test_a_claim_with_pending_cleanup_waits_for_the_disk(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = driver.api.add("gpu-1", configs=CONFIGS["sharing"])
    driver.prepare(ref)
    driver.sharing.refuse_undo = DeviceError("the GPU refused")
    driver.unprepare(ref)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    driver.prepare(ref)
    assert driver.cleanups(ref)
    assert len(synced) == 4, "file and folder, of what is intended and of what is done"


def test_a_refused_change_is_undone_and_leaves_nothing(driver: Driver) -> None:
    ref = driver.api.add("gpu-1", "gpu-2", configs=CONFIGS["sharing"])
    driver.sharing.refuse_apply = DeviceError("the GPU refused")
    with pytest.raises(DeviceError, match="the GPU refused"):
        driver.prepare(ref)
    assert driver.left() == []
    driver.sharing.refuse_apply = None
    driver.prepare(ref)
    assert driver.set_on(GPU) == ref.uid


def test_the_edits_of_a_strategy_are_in_the_spec_and_come_back_into_it(driver: Driver) -> None:
    ref = driver.api.add("gpu-1", configs=CONFIGS["sharing"])
    driver.prepare(ref)
    spec = driver.spec(ref)
    assert spec["devices"][0]["containerEdits"]["env"] == [f"MPS={ref.uid}"]
    driver.specs.delete(ref.uid)
    driver.prepare(ref)
    assert driver.spec(ref) == spec


def test_failed_undos_do_not_block_unprepare_and_are_retried(driver: Driver) -> None:
    ref = driver.api.add("gpu-1", configs=CONFIGS["sharing"])
    driver.prepare(ref)
    driver.sharing.refuse_undo = DeviceError("the GPU refused")
    driver.unprepare(ref)
    driver.unprepare(ref)
    assert not driver.specs.exists(ref.uid)
    record = driver.claims.ledger.read(ref.uid)
    assert record is not None
    assert record.state is RecordState.RELEASED

    newcomer = driver.api.add("gpu-1", uid="new", name="new", configs=CONFIGS["sharing"])
    driver.prepare(newcomer)
    driver.sharing.refuse_undo = None
    reconciler = driver.reconciler(ReconcileTiming())
    assert reconciler.mend() == {ref.uid}, "the GPU is another claim's now, so it must wait"
    assert driver.set_on(GPU) == "new"
    driver.unprepare(newcomer)
    assert not reconciler.mend()
    assert driver.left() == []
