"""Claims whose memory limits are not in force are counted until they are, or the claims go."""

from pathlib import Path

from dra_driver.simulator.layout import Fact
from worlds.limited_node import LimitedNode, share

SET = "nvmlDeviceSetMemoryLimits_v1"


def lost(node: LimitedNode, group: Path) -> None:
    """Have a pod's group made again, and NVML refuse to limit it."""
    node.make_again(group)
    node.machine.fail_call(SET, 4, uuid=node.uuid(0))


def test_a_claim_counts_until_its_limit_is_set_again(node: LimitedNode) -> None:
    (pod, group), (other, _) = node.pod(), node.pod()
    node.driver.prepare(node.claim_of(pod, share(0)))
    node.driver.prepare(node.claim_of(other, share(1), name="other"))
    node.look_after()
    assert node.watch.not_in_force() == 0
    lost(node, group)
    for _ in range(2):
        node.look_after()
        assert node.watch.not_in_force() == 1
    node.machine.clear_faults()
    node.look_after()
    assert node.watch.not_in_force() == 0
    assert node.limit(group) == node.share_mib


def test_an_unprepared_claim_no_longer_counts(node: LimitedNode) -> None:
    pod, group = node.pod()
    ref = node.claim_of(pod, share(0))
    node.driver.prepare(ref)
    lost(node, group)
    node.look_after()
    assert node.watch.not_in_force() == 1
    node.machine.clear_faults()
    node.driver.unprepare(ref)
    node.look_after()
    assert node.watch.not_in_force() == 0


def test_without_persistence_mode_limits_end_with_the_last_process_and_with_it_they_stay(
    node: LimitedNode,
) -> None:
    pod, group = node.pod()
    node.driver.prepare(node.claim_of(pod, share(0)))
    assert [gpu.is_persistent for gpu in node.session.look().gpus][:1] == [False]
    node.session.close()
    node.look()
    assert (node.limit(group), node.others()) == (None, None)
    node.look_after()
    node.machine.set_fact(node.uuid(0), Fact.PERSISTENCE_MODE, 1)
    node.session.close()
    node.look()
    assert (node.limit(group), node.others()) == (node.share_mib, 1)
