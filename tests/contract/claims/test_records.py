"""Records on disk that are damaged, and those who only look at them while others write."""

from pathlib import Path

import pytest

import make
from dra_driver.claims.model import ClaimRef, ClaimUid
from dra_driver.claims.reconcile import ReconcileTiming
from dra_driver.errors import TransientError
from worlds.driver import Driver

GPU = make.gpu(1).uuid


def damaged(driver: Driver) -> tuple[ClaimRef, Path]:
    """A prepared claim whose record is damaged."""
    ref = driver.api.add("gpu-1", uid="damaged", name="damaged")
    driver.prepare(ref)
    path = driver.plugin / "claims" / f"{ref.uid}.json"
    path.write_bytes(b"\0" * 100)
    return ref, path


def test_a_damaged_record_is_moved_aside_by_nobody_without_its_lock(driver: Driver) -> None:
    _, path = damaged(driver)
    with driver.locks.claim("damaged", deadline=0.0):  # somebody is about to write it anew
        with pytest.raises(TransientError, match="a GPU is being given back"):
            driver.prepare(driver.api.add("gpu-1", uid="other", name="other"), seconds=0.05)
        assert driver.claims.records.peek(ClaimUid("damaged")) is None
        assert not driver.claims.cleanup.count_pending()
        assert path.exists()
        assert driver.claims.records.quarantined == 0
    driver.reconciler(ReconcileTiming()).mend()
    assert not path.exists()
    assert driver.claims.records.quarantined == 1
