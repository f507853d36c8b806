"""Nobody waits for an MPS daemon with a GPU's lock in hand, and who waits says for what."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.model.record import RecordState
from dra_driver.claims.prepare.preparer import PrepareTiming
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from dra_driver.errors import DriverError
from dra_driver.mps import processes
from dra_driver.mps.domain import DomainId, State, shared_domain
from worlds.configs import HALF, MPS_ON_MIG, PATIENCE
from worlds.node import MakeNode, Node
from worlds.process import eventually

NOT_RUNNING = "the MPS supervisor is not running on this node"


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    made = make_node()
    # A wait that is never cut short by itself: a test ends it.
    made.driver.preparer._timing = PrepareTiming(longest=2 * PATIENCE, margin=0.0)
    return made


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def shares(node: Node, count: int) -> list[ClaimRef]:
    return [node.claim(f"gpu-0-single-share-{n}-of-10", name=f"c{n}") for n in range(count)]


def waiting(node: Node, pool: ThreadPoolExecutor, refs: list[ClaimRef]) -> list[Future[object]]:
    """Prepare claims of shares on threads; return when all have joined their domain."""
    domain = shared_domain(node.uuid(0))
    found: list[Future[object]] = [pool.submit(node.driver.prepare, ref) for ref in refs]
    uids = {ref.uid for ref in refs}
    eventually(lambda: uids <= node.mps.requests.members(domain), "all to have joined")
    return found


def lose_mps(node: Node) -> None:
    """Let the daemons die as well: the supervisor is gone already."""
    for folder in node.mps.files.domains_folder.iterdir():
        assert processes.kill(processes.marked(folder), PATIENCE)


def check_free(node: Node) -> None:
    """Check that nobody holds the first GPU."""
    with node.driver.locks.gpus([node.uuid(0)], time.monotonic()):
        pass


def test_a_tenant_leaves_while_others_wait_for_a_supervisor_that_is_dead(
    node: Node, pool: ThreadPoolExecutor
) -> None:
    node.divide(0)
    tenant, *others = shares(node, 7)
    with node.mps.supervised():
        node.driver.prepare(tenant)
    lose_mps(node)
    calls = waiting(node, pool, others)
    node.driver.unprepare(tenant)
    check_free(node)
    assert node.driver.claims.ledger.read(tenant.uid) is None
    assert not any(call.done() for call in calls)
    for ref in others:
        node.driver.unprepare(ref)
    for call in calls:
        with pytest.raises(DriverError, match=NOT_RUNNING):
            call.result(PATIENCE)
    with node.mps.supervised():
        eventually(node.mps.supervisor_runs, "the supervisor to run")
        assert node.driver.reconciler(ReconcileTiming()).mend() == set()
    assert node.left() == []


def test_each_pod_that_waits_in_vain_learns_the_reason(
    node: Node, pool: ThreadPoolExecutor
) -> None:
    node.divide(0)
    tenant, *others = shares(node, 7)
    with node.mps.supervised():
        node.driver.prepare(tenant)
    lose_mps(node)
    calls = [pool.submit(node.driver.prepare, ref, 1.0) for ref in others]
    for call in calls:
        with pytest.raises(DriverError, match=f"^{NOT_RUNNING}.*see the state and the log"):
            call.result(PATIENCE)
    # Nothing is kept of those that have failed, and the tenant is still one.
    assert node.mps.requests.members(shared_domain(node.uuid(0))) == {tenant.uid}
    assert node.driver.claims.ledger.uids() == {tenant.uid}


def test_unprepare_ends_a_wait_for_a_daemon_with_the_reason(
    node: Node, pool: ThreadPoolExecutor
) -> None:
    gate = hold_starts(node)
    with node.mps.supervised():
        ref = node.claim_gpus({"a": HALF})
        call = pool.submit(node.driver.prepare, ref)
        eventually(lambda: state_of(node, ref.uid) is State.STARTING, "the daemon to be started")
        gone = pool.submit(node.driver.unprepare, ref)
        with pytest.raises(DriverError, match=rf"MPS domain {ref.uid} is not ready yet") as caught:
            call.result(PATIENCE)
        assert "supervisor says it is starting" in str(caught.value)
        gate.touch()
        gone.result(PATIENCE)
        assert node.driver.reconciler(ReconcileTiming()).mend() == set()
        assert node.left() == []


def test_other_partitions_of_a_gpu_come_and_go_while_a_daemon_starts_and_while_it_ends(
    node: Node, pool: ThreadPoolExecutor
) -> None:
    gate, may_end, ends = hold_starts(node), threading.Event(), threading.Event()

    def step(name: str) -> None:
        if name == "stopping":
            ends.set()
            may_end.wait(PATIENCE)

    with node.mps.supervised(step):
        ref = node.claim(node.name("1g.10gb", 0), name="mps", configs=[MPS_ON_MIG])
        call = pool.submit(node.driver.prepare, ref)
        eventually(lambda: state_of(node, f"{ref.uid}_mig_0"), "the daemon to be asked for")
        plain = node.claim(node.name("1g.10gb", 1), name="plain")
        node.driver.prepare(plain)
        node.driver.unprepare(plain)
        assert not call.done()
        assert node.driver.claims.ledger.read(ref.uid).state is RecordState.PREPARING  # type: ignore[union-attr]
        gate.touch()
        call.result(PATIENCE)
        gone = pool.submit(node.driver.unprepare, ref)
        assert ends.wait(PATIENCE)
        node.driver.prepare(plain)
        node.driver.unprepare(plain)
        assert not gone.done()
        may_end.set()
        gone.result(PATIENCE)
        assert node.left() == []


def test_without_a_supervisor_a_claim_is_unprepared_without_a_wait(node: Node) -> None:
    ref = node.claim_gpus({"a": HALF})
    with node.mps.supervised():
        node.driver.prepare(ref)
    waits: list[str] = []
    wait = node.mps.requests._wait

    def seen(domain: DomainId, deadline: float, *rest: object, **facts: object) -> object:
        waits.append(domain)
        assert facts["grace"] == 0.0
        return wait(domain, deadline, *rest, **facts)  # type: ignore[arg-type]

    node.mps.requests._wait = seen  # type: ignore[method-assign, assignment]
    node.driver.unprepare(ref)
    assert waits
    ((strategy, reason),) = node.driver.cleanups(ref)
    assert (strategy, NOT_RUNNING in reason) == ("MPS", True)
    with node.mps.supervised():
        eventually(node.mps.supervisor_runs, "the supervisor to run")
        assert node.driver.reconciler(ReconcileTiming()).mend() == set()
        assert node.left() == []


def hold_starts(node: Node) -> Path:
    """Let no daemon start before a file is there; return its path."""
    gate = node.root / "gate"
    node.mps.wrap_control(
        f'case "$*" in -d) until [ -e {gate} ]; do sleep 0.01; done;; esac\nexec "$REAL" "$@"'
    )
    return gate


def state_of(node: Node, domain: str) -> State | None:
    status = node.mps.requests.status(DomainId(domain))
    return None if status is None else status.state
