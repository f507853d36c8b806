"""A process that lets drivers of its own die at each NVML call, and checks what comes after.

Each driver is a fork, so that a hundred of them take no longer than a few interpreters would. They
leave a machine without anything of theirs, so all of them use the same one.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from itertools import count
from pathlib import Path

from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.model.record import RecordState
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from worlds.configs import MPS_ON_MIG
from worlds.node import Node


def claim(node: Node) -> ClaimRef:
    return node.claim(node.name("1g.10gb", 2), configs=[MPS_ON_MIG])


def prepare(root: Path, nth: int, *, after: bool) -> None:
    """Prepare and be killed at a call."""
    node = Node(root)
    ref = claim(node)
    node.machine.kill_at("*", nth=nth, after=after)
    node.driver.prepare(ref)


def unprepare(root: Path, nth: int, *, after: bool) -> None:
    """Prepare, then unprepare and be killed at a call."""
    node = Node(root)
    ref = claim(node)
    node.driver.prepare(ref)
    node.machine.kill_at("*", nth=nth, after=after)
    node.driver.unprepare(ref)


def then_prepare(node: Node, ref: ClaimRef) -> None:
    """The kubelet repeats Prepare: the claim has its device, and nothing is on another one."""
    node.driver.prepare(ref)
    assert node.mig_shapes() == {0: ["1g.10gb@2"]}
    (made,) = node.migs()
    assert set(node.driver.shared) <= {made.uuid}
    node.driver.unprepare(ref)


def then_unprepare(node: Node, ref: ClaimRef) -> None:
    """The pod was deleted meanwhile."""
    node.driver.unprepare(ref)


def then_start(node: Node, ref: ClaimRef) -> None:
    """The driver starts and looks around; a claim is prepared whole, or not at all."""
    assert node.driver.reconciler(ReconcileTiming()).mend() == set()
    record = node.driver.claims.ledger.read(ref.uid)
    if record is None:
        assert node.mig_shapes() == {}
    else:
        assert record.state is RecordState.PREPARED
        assert node.mig_shapes() == {0: ["1g.10gb@2"]}
    node.driver.unprepare(ref)


def then_another(node: Node, ref: ClaimRef) -> None:
    """The claim is deleted, and the next one has a larger device in the same place."""
    del node.driver.api.claims["default", ref.name]
    node.driver.unprepare(ref)
    other = node.claim(node.name("2g.20gb", 2), name="other")
    node.driver.prepare(other)
    assert node.mig_shapes() == {0: ["2g.20gb@2"]}
    node.driver.unprepare(other)


def forked(work: Callable[[], None]) -> int:
    """Do work in a process of its own; return its exit status, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 (nothing may come back from a fork)
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def check(root: Path, then: str) -> None:
    node = Node(root)
    node.machine.clear_faults()
    globals()[then](node, claim(node))
    node.driver.reconciler(ReconcileTiming()).mend()
    assert node.left() == [], node.left()


def main(folder: str, call: str, when: str, then: str, first: str, stride: str) -> int:
    root, after = Path(folder), when == "after"
    Node.create(root).close()
    for nth in count(int(first), int(stride)):
        status = forked(lambda n=nth: globals()[call](root, n, after=after))  # type: ignore[misc]
        if status == 0:
            print(f"fewer than {nth} calls")  # noqa: T201
            return 0 if nth > int(stride) else 1
        if status != -signal.SIGKILL or forked(lambda: check(root, then)):
            print(f"killed {when} NVML call {nth} of {call}, {then}: not well")  # noqa: T201
            return 1
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
