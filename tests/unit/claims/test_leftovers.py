"""What is taken back of a claim that has no record."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import make
from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.prepare.leftovers import Leftovers
from dra_driver.claims.prepare.steps import NO_WAIT
from dra_driver.claims.state.locks import NodeLocks
from dra_driver.devices.model import GpuUuid, MigSlot
from dra_driver.errors import DeviceError, TransientError

ONE, TWO = ClaimUid("uid-1"), ClaimUid("uid-2")


class Daemons:
    """Two claims with daemons, and what is asked for; `failing` cannot be taken back."""

    def __init__(self, *failing: str) -> None:
        self.swept: list[tuple[str, float]] = []
        self._failing = failing

    def claims(self) -> frozenset[str]:
        return frozenset({ONE})

    def sweep(self, uid: str, deadline: float) -> list[tuple[str, Exception]]:
        self.swept.append((uid, deadline))
        return [(name, OSError()) for name in self._failing]


class Node:
    """Records, marks, notes of MIG devices, and specs, as a crash may leave them."""

    def __init__(self) -> None:
        self.records = self.ownership = self
        self.taken: list[Any] = []
        self.refuses = False

    def made(self, *_: object) -> Mapping[MigSlot, ClaimUid]:
        return {SLOT: ONE, OTHER: TWO}

    def take_away(self, made: Mapping[MigSlot, ClaimUid]) -> None:
        if self.refuses:
            raise DeviceError("in use")
        self.taken.append(dict(made))

    def holders(self, gpu: GpuUuid) -> set[ClaimUid]:
        return {ONE}

    def delete(self, uid: ClaimUid) -> None:
        self.taken.append(f"files of {uid}")

    def unmark_all(self, uid: ClaimUid) -> None:
        self.taken.append(uid)

    def tidy(self, gpu: GpuUuid) -> None:
        self.taken.append(gpu)

    def uids(self) -> set[ClaimUid]:
        return {ClaimUid("recorded")}

    def marked(self) -> set[ClaimUid]:
        return {ClaimUid("marked")}

    def traced(self) -> set[str]:
        return {"spec"}


SLOT, OTHER = (MigSlot(gpu=GpuUuid(f"GPU-{number}"), profile_id=9, start=0) for number in (0, 1))


def leftovers(node: Any, daemons: Any, failed: list[str]) -> Leftovers:
    return Leftovers(node, node, daemons, node, failed.append)


def test_every_trace_of_a_claim_counts() -> None:
    found = leftovers(Node(), Daemons(), []).traced()
    assert found == {"recorded", "marked", "spec", ONE, TWO}
    assert leftovers(Node(), Daemons(), []).made_for(TWO) == {OTHER: TWO}


def test_daemons_are_waited_for_before_anything_is_destroyed_and_only_where_there_are_any(
    tmp_path: Path,
) -> None:
    daemons, locks = Daemons(), NodeLocks(tmp_path / "locks", lambda: 0.0)
    for uid in (TWO, ONE):
        assert leftovers(Node(), daemons, []).take_back(uid, locks, 7.0)
    assert daemons.swept == [(TWO, NO_WAIT), (ONE, 7.0), (ONE, NO_WAIT)]
    locks.close()


def test_nothing_is_destroyed_below_daemons_that_remain() -> None:
    node, failed = Node(), list[str]()
    assert not leftovers(node, Daemons("MPS"), failed).sweep(ONE, {SLOT: ONE})
    assert (failed, node.taken) == (["MPS"], [])

    daemons = Daemons()
    assert leftovers(node, daemons, failed).sweep(ONE, {SLOT: ONE})
    assert daemons.swept == [(ONE, NO_WAIT)]
    assert node.taken == [{SLOT: ONE}, SLOT.gpu, ONE]


def test_a_mig_device_that_is_in_use_is_counted_and_keeps_its_gpu_from_others() -> None:
    node, failed = Node(), list[str]()
    node.refuses = True
    found = leftovers(node, Daemons(), failed)
    assert not found.sweep(ONE, {SLOT: ONE})
    assert (failed, node.taken) == (["MIG"], [])
    gpu = make.gpu(0)
    with pytest.raises(TransientError) as caught:
        found.vacate(ONE, make.record(gpu))
    assert str(caught.value) == (
        f"{gpu.uuid} cannot be used yet: what was made there for claim UID uid-1, whose record is "
        "lost, has not ended"
    )
