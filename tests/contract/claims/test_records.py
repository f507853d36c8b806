"""Records on disk that are damaged, and those who only look at them while others write."""

from pathlib import Path

import pytest

import make
from claims_world import World
from dra_driver.claims.model import ClaimRef, ClaimUid
from dra_driver.claims.reconcile import ReconcileTiming
from dra_driver.errors import TransientError

GPU = make.gpu(1).uuid


def damaged(world: World) -> tuple[ClaimRef, Path]:
    """A prepared claim whose record is damaged."""
    ref = world.api.add("gpu-1", uid="damaged", name="damaged")
    world.prepare(ref)
    path = world.plugin / "claims" / f"{ref.uid}.json"
    path.write_bytes(b"\0" * 100)
    return ref, path


def test_a_damaged_record_is_moved_aside_by_nobody_without_its_lock(world: World) -> None:
    _, path = damaged(world)
    with world.locks.claim("damaged", deadline=0.0):  # somebody is about to write it anew
        with pytest.raises(TransientError, match="a GPU is being given back"):
            world.prepare(world.api.add("gpu-1", uid="other", name="other"), seconds=0.05)
        assert world.claims.records.peek(ClaimUid("damaged")) is None
        assert not world.claims.cleanup.count_pending()
        assert path.exists()
        assert world.claims.records.quarantined == 0
    world.reconciler(ReconcileTiming()).mend()
    assert not path.exists()
    assert world.claims.records.quarantined == 1
