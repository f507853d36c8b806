"""What a newer version of the driver wrote is left to it: after a roll-back, or side by side."""

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

import make
from claims_world import MPS, World
from dra_driver.claims.checkpoint import stored_records
from dra_driver.claims.model import ClaimRef
from dra_driver.claims.reconcile import ReconcileTiming
from dra_driver.errors import ConflictError, VersionError

UID = "newer"


def next_version(path: Path) -> None:
    """Write a file as a version with another envelope would."""
    path.write_bytes(path.read_bytes().replace(b'"version":1', b'"version":2'))


def next_kind(path: Path) -> None:
    """Write a record with a kind of device that is not known here, in the same envelope."""
    payload = json.loads(path.read_bytes())["payload"]
    payload["devices"][0]["device"]["kind"] = "share"
    body = json.dumps(payload).encode()
    digest = sha256(body).hexdigest().encode()
    path.write_bytes(b'{"version":1,"sha256":"%s","payload":%s}\n' % (digest, body))


NEWER = pytest.mark.parametrize("newer", [next_version, next_kind])


def rolled_back(tmp_path: Path, newer: Callable[[Path], None]) -> tuple[World, ClaimRef]:
    """A claim that a newer version has prepared; what it shares outlives reboots."""
    world = World(tmp_path, survives_reboot=True)
    ref = world.api.add("gpu-1", uid=UID, name="newer", configs=[MPS])
    world.prepare(ref)
    newer(world.plugin / "claims" / f"{UID}.json")
    return world, ref


@NEWER
def test_nothing_of_such_a_claim_is_touched(tmp_path: Path, newer: Callable[[Path], None]) -> None:
    world, ref = rolled_back(tmp_path, newer)
    before, record = world.left(), (world.plugin / "claims" / f"{UID}.json").read_bytes()
    world.api.claims.clear()
    reconciler = world.reconciler(ReconcileTiming(grace=0.0))
    for _ in range(2):
        assert reconciler.mend() == {ref.uid}
        assert reconciler.compare() == {ref.uid}
        assert reconciler.compare_orphans() == set()
    assert world.left() == before
    assert (world.plugin / "claims" / f"{UID}.json").read_bytes() == record
    assert world.set_on(make.gpu(1).uuid) == UID
    assert world.claims.records.quarantined == 0
    assert not world.claims.cleanup.count_pending()
    world.close()


@NEWER
def test_calls_for_it_say_what_to_do(tmp_path: Path, newer: Callable[[Path], None]) -> None:
    world, ref = rolled_back(tmp_path, newer)
    before = world.left()
    for call in (world.prepare, world.unprepare):
        with pytest.raises(
            VersionError,
            match=r"a newer version of this driver prepared claim UID newer \(it has .*"
            "install that version again",
        ):
            call(ref)
    assert world.left() == before
    world.close()


@NEWER
def test_its_gpus_are_another_claim_s(tmp_path: Path, newer: Callable[[Path], None]) -> None:
    world, _ = rolled_back(tmp_path, newer)
    other = world.api.add("gpu-1", uid="other", name="other")
    with pytest.raises(ConflictError, match="is held by another claim: a newer version of this"):
        world.prepare(other)
    elsewhere = world.api.add("gpu-2", uid="elsewhere", name="elsewhere")
    assert len(world.prepare(elsewhere)) == 1
    world.close()


def test_status_does_not_call_it_damaged(tmp_path: Path) -> None:
    world, _ = rolled_back(tmp_path, next_version)
    (reason,) = stored_records(world.plugin).damaged.values()
    assert reason.startswith("not damaged, but of a newer version: it has version 2")
    world.close()
