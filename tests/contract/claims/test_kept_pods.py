"""How long processes on a claim's MIG device keep its pod: some minutes, over all calls."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.claims.prepare.preparer import PrepareTiming
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from dra_driver.errors import TransientError
from worlds.node import Node

SOON = 0.3
LONGEST = PrepareTiming().longest_in_use


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node.create(tmp_path)
    yield made
    made.close()


def stored(node: Node, ref: ClaimRef) -> ClaimRecord:
    record = node.driver.claims.records.read(ref.uid)
    assert record is not None
    return record


def test_a_foreign_handle_keeps_the_pod_for_some_minutes_and_the_place_for_ever(
    node: Node,
) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    node.driver.prepare(ref)
    (made,) = node.migs()
    node.machine.hold_instance(made.uuid)
    for _ in range(2):
        with pytest.raises(TransientError, match="cannot be unprepared yet"):
            node.driver.unprepare(ref, SOON)
    # Minutes and a restart of the driver later:
    record = stored(node, ref)
    (cleanup,) = record.pending
    assert cleanup.since is not None
    node.driver.claims.records.write(
        replace(record, pending=(replace(cleanup, since=cleanup.since - LONGEST),))
    )
    node.restart()
    node.driver.unprepare(ref, SOON)
    assert [one.name for one in stored(node, ref).pending] == ["MIG"]
    newcomer = node.claim(node.name("1g.20gb", 0), name="newcomer")
    with pytest.raises(TransientError, match="MIG of an earlier claim has not ended"):
        node.driver.prepare(newcomer, SOON)
    node.machine.release_instance(made.uuid)
    assert node.driver.reconciler(ReconcileTiming()).mend() == set()
    assert node.left() == []


def test_it_is_kept_no_longer_when_the_node_s_clock_is_set_back(node: Node) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    node.driver.prepare(ref)
    node.machine.hold_instance(node.migs()[0].uuid)
    with pytest.raises(TransientError):
        node.driver.unprepare(ref, SOON)
    record = stored(node, ref)
    (cleanup,) = record.pending
    assert cleanup.since is not None
    tomorrow = cleanup.since + 86400
    node.driver.claims.records.write(replace(record, pending=(replace(cleanup, since=tomorrow),)))
    with pytest.raises(TransientError):
        node.driver.unprepare(ref, SOON)
    (cleanup,) = stored(node, ref).pending
    assert cleanup.since is not None
    assert cleanup.since < tomorrow
