"""A node is taken over from NVIDIA's DRA driver by a driver that dies, or whose disk refuses."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from dra_driver.claims.model.claim import ClaimRef
from worlds import child
from worlds.node import Node
from worlds.nvidia import NvidiaDriver, checkpoint, taken_over

STEPS = ["recorded", "recorded:2", "put aside"]


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_the_next_start_goes_on(node: Node, step: str) -> None:
    theirs = NvidiaDriver(node)
    refs: list[ClaimRef] = [
        node.claim(node.name("1g.10gb", 0), name="mig"),
        node.claim("gpu-1", name="whole"),
    ]
    for ref in refs:
        theirs.prepare(ref)
    live = [mig.uuid for mig in node.migs()]
    assert child.was_killed(child.fork("die_taking_over", node.root, step))
    assert theirs.file.exists() == (step != "put aside")
    taken_over(node)
    assert [mig.uuid for mig in node.migs()] == live
    assert not theirs.file.exists()
    for ref in refs:
        (answer,) = node.driver.prepare(ref)
        assert answer.cdi_device_ids[0].startswith(f"k8s.gpu.nvidia.com/claim={ref.uid}-gpu-")
    assert [mig.uuid for mig in node.migs()] == live
    for ref in refs:
        node.driver.unprepare(ref)
    assert node.left() == []


@pytest.mark.parametrize("step", ["recorded", "struck"])
def test_killed_with_a_claim_left_the_next_start_continues(node: Node, step: str) -> None:
    theirs = NvidiaDriver(node)
    taken, left = node.claim("gpu-1", name="taken"), node.claim("gpu-0", name="left")
    theirs.prepare(taken)
    theirs.prepare(left)
    theirs.claims[left.uid]["checkpointState"] = "PrepareFailed"
    theirs.write()
    assert child.was_killed(child.fork("die_taking_over", node.root, step))
    taken_over(node)
    del theirs.claims[taken.uid]
    kept = checkpoint(theirs.claims, boot_id=node.machine.boot_id)
    assert theirs.file.read_bytes() == kept
    assert node.driver.claims.ledger.uids() == {taken.uid}
    node.driver.prepare(taken)
    node.driver.unprepare(taken)
    assert node.take_over().run()
    assert node.driver.claims.ledger.uids() == set()


def test_on_a_disk_that_refuses_nothing_is_lost(node: Node, tmp_path: Path) -> None:
    theirs = NvidiaDriver(node)
    ref = node.claim("gpu-0")
    theirs.prepare(ref)
    node.restart()
    claims = theirs.folder / "claims"
    claims.rename(tmp_path / "away")
    claims.write_bytes(b"")  # no folder, so that no record can be made
    take_over = node.take_over()
    with capture_logs() as said:
        assert not take_over.run()
    assert "cannot" in said[-1]["reason"]
    assert theirs.file.exists()
    assert theirs.spec(ref).exists()
    claims.unlink()
    (tmp_path / "away").rename(claims)
    assert take_over.run()
    assert node.driver.prepare(ref)
