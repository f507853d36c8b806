"""How long processes on a claim's MIG device keep its pod: some minutes, over all calls."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.model.record import (
    ClaimRecord,
    MakeMigDevices,
    PendingCleanup,
    TurnMigModeOn,
)
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
    record = node.driver.claims.ledger.read(ref.uid)
    assert record is not None
    return record


def test_a_foreign_handle_keeps_the_pod_for_some_minutes_and_the_place_for_ever(node: Node) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    node.driver.prepare(ref)
    (made,) = node.migs()
    node.machine.hold_instance(made.uuid)
    for _ in range(2):
        with pytest.raises(TransientError, match="cannot be unprepared yet"):
            node.driver.unprepare(ref, SOON)
    # Minutes and a restart of the driver later:
    record = stored(node, ref)
    long_ago = [replace(one, since=(one.since or 0.0) - LONGEST) for one in record.pending]
    node.driver.claims.ledger.write(replace(record, pending=tuple(long_ago)))
    node.restart()
    node.driver.unprepare(ref, SOON)
    assert [type(one.of) for one in stored(node, ref).pending] == [TurnMigModeOn, MakeMigDevices]
    newcomer = node.claim(node.name("1g.20gb", 0), name="newcomer")
    with pytest.raises(TransientError, match="MIG of an earlier claim has not ended"):
        node.driver.prepare(newcomer, SOON)
    node.machine.release_instance(made.uuid)
    assert node.driver.reconciler(ReconcileTiming()).mend() == set()
    assert node.left() == []


Tries = list[ClaimRecord]


@pytest.fixture
def on_try(node: Node, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], Tries]:
    """Have something done before each try of a release; return a list of the tries."""

    def watch(act: Callable[[], None]) -> Tries:
        tries: Tries = []
        release = node.driver.claims.release.release

        def watched(record: ClaimRecord, deadline: float) -> tuple[PendingCleanup, ...]:
            tries.append(record)
            act()
            return release(record, deadline)

        monkeypatch.setattr(node.driver.claims.release, "release", watched)
        return tries

    return watch


def held(node: Node) -> tuple[ClaimRef, str]:
    """A claim whose MIG device somebody uses, and that device."""
    ref = node.claim(node.name("1g.10gb", 0))
    node.driver.prepare(ref)
    (made,) = node.migs()
    node.machine.hold_instance(made.uuid)
    return ref, made.uuid


def test_processes_that_end_within_the_call_are_waited_for(
    node: Node, on_try: Callable[[Callable[[], None]], Tries]
) -> None:
    ref, uuid = held(node)
    tries = on_try(lambda: node.machine.release_instance(uuid) if len(tries) == 3 else None)
    node.driver.unprepare(ref)
    assert len(tries) == 3
    assert node.left() == []


def test_the_pause_between_tries_ends_with_the_driver(
    node: Node, on_try: Callable[[Callable[[], None]], Tries]
) -> None:
    node.driver.preparer._timing = PrepareTiming(margin=0.0, first_pause=2 * SOON)
    ref, _ = held(node)
    tries = on_try(lambda: None)
    with pytest.raises(TransientError, match="cannot be unprepared yet"):
        node.driver.unprepare(ref, SOON)
    assert len(tries) <= 2, "one at once, one at the end"
    node.driver.preparer.stop()
    tries.clear()
    with pytest.raises(TransientError, match="cannot be unprepared yet"):
        node.driver.unprepare(ref)
    assert len(tries) == 1


def test_a_clock_set_back_does_not_keep_it_longer(node: Node) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    node.driver.prepare(ref)
    node.machine.hold_instance(node.migs()[0].uuid)
    with pytest.raises(TransientError):
        node.driver.unprepare(ref, SOON)
    record = stored(node, ref)
    tomorrow = time.time() + 86400
    later = tuple(replace(one, since=tomorrow) for one in record.pending)
    node.driver.claims.ledger.write(replace(record, pending=later))
    with pytest.raises(TransientError):
        node.driver.unprepare(ref, SOON)
    assert all((one.since or tomorrow) < tomorrow for one in stored(node, ref).pending)
