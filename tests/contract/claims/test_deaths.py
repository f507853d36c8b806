"""A driver is killed at any moment of a call: the next call, or the next start, mends it."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from crashes import deaths
from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.model.record import RecordState
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from worlds import child
from worlds.node import Node
from worlds.ways import WAYS, Way

HERE = "tests/contract/claims/test_deaths.py"
NEXTS = {
    "prepare": ("prepare", "mend", "unprepare"),
    "unprepare": ("unprepare", "mend", "prepare", "mend and prepare"),
}
TABLE = [
    case
    for name, make in WAYS.items()
    for call, nexts in NEXTS.items()
    for case in deaths(
        HERE, [(name, call, moment) for moment in make().moments[call]], nexts, make().every
    )
]


def kill(way: Way, node: Node, name: str, call: str, moment: str) -> ClaimRef:
    """Have a driver of its own make a call for the way's claim, and be killed at a moment of it."""
    way.begin(node)
    ref = way.claim(node)
    if call == "unprepare":
        node.driver.prepare(ref)
    assert node.session.close()  # two drivers with NVML open keep each other from MIG modes
    assert child.was_killed(child.fork("die", node.root, name, call, moment))
    node.look()
    return ref


@pytest.mark.parametrize(("name", "call", "moment", "after"), TABLE)
def test_killed_at_any_moment_a_claim_is_prepared_or_gone_and_nothing_is_left(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, call: str, moment: str, after: str
) -> None:
    way = WAYS[name]()
    for need in ("needs_root", "real_userspace") if way.is_real else ():
        request.getfixturevalue(need)
    node = way.create(tmp_path / "node")
    request.addfinalizer(node.mps.clean)
    with node.mps.supervised() if way.by_mps else nullcontext():
        ref = kill(way, node, name, call, moment)
        for what in after.split(" and "):
            if what == "mend":
                assert node.driver.reconciler(ReconcileTiming()).mend() == set()
            else:
                {"prepare": node.driver.prepare, "unprepare": node.driver.unprepare}[what](ref)
            record = node.driver.claims.ledger.read(ref.uid)
            assert what == "mend" or (record is not None) is (what == "prepare")
            if record is not None:
                assert record.state is RecordState.PREPARED
                assert node.driver.specs.exists(ref.uid)
            elif not way.has_neighbour:
                assert node.left() == [*way.left]
            way.check(node, ref, what if record else "")
        node.driver.unprepare(ref)
        way.check(node, ref, "")
        way.end(node)
        assert node.left() == [*way.left]
