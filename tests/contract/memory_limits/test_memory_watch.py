"""Memory limits of shares are looked after, and come back whatever happened to them."""

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager

from dra_driver.claims.memory.watch import ESCAPED, NO_MEMORY, NOT_IN_FORCE
from dra_driver.claims.state.locks import NodeLocks
from dra_driver.devices.shares import ShareStrategy
from dra_driver.host.envelope import seal, unseal
from worlds.limited_node import LimitedNode, share


def test_a_pod_whose_group_was_made_again_is_limited_again(node: LimitedNode) -> None:
    pod, group = node.pod()
    node.driver.prepare(node.claim_of(pod, share(0)))
    node.make_again(group)
    assert node.limit(group) == 1
    node.look_after()
    assert node.limit(group) == node.share_mib
    assert node.events.posted == []


def test_limits_that_nvml_has_forgotten_are_set_again(node: LimitedNode) -> None:
    pod, group = node.pod()
    ref = node.claim_of(pod, share(0))
    node.driver.prepare(ref)
    node.session.close()
    node.look()
    assert (node.limit(group), node.others()) == (None, None)
    node.look_after()
    assert (node.limit(group), node.others()) == (node.share_mib, 1)
    node.node_memory.groups.admit_others(node.uuid(0))  # somebody does
    node.look_after()
    assert (node.limit(group), node.others()) == (node.share_mib, 1)


def test_a_repeated_prepare_sets_a_lost_limit_again(node: LimitedNode) -> None:
    pod, group = node.pod()
    ref = node.claim_of(pod, share(0))
    answer = node.driver.prepare(ref)
    node.make_again(group)
    assert node.driver.prepare(ref) == answer
    assert node.limit(group) == node.share_mib


def test_a_later_pod_of_a_claim_gets_no_memory_and_an_event(node: LimitedNode) -> None:
    (first, _), (second, group) = node.pod(), node.pod()
    ref = node.claim_of(first, share(0))
    node.driver.prepare(ref)
    node.reserve(ref, first, second)
    for _ in range(2):
        node.look_after()
    assert node.limit(group) == 1
    assert not node.take(group, 10, pid=1)
    ((name, reason, note),) = node.events.posted
    assert (name, reason) == (f"pod-{second[:4]}", NO_MEMORY)
    assert f"claim default/claim has a share that pod pod-{first[:4]} already has" in note


def test_all_later_pods_get_no_memory_and_an_event(node: LimitedNode) -> None:
    pods = [node.pod() for _ in range(4)]
    ref = node.claim_of(pods[0][0], share(0))
    node.driver.prepare(ref)
    assert not node.take(pods[1][1], 10, pid=1)
    node.reserve(ref, *(pod for pod, _ in pods))
    node.look_after()
    assert [node.limit(group) for _, group in pods[2:]] == [1, 1]
    assert {name for name, _, _ in node.events.posted} == {f"pod-{pod[:4]}" for pod, _ in pods[1:]}


def test_a_record_whose_step_cannot_be_read_keeps_no_other_from_its_limit(
    node: LimitedNode,
) -> None:
    (one, _), (two, group) = node.pod(), node.pod()
    node.divide(1, combines=True, strategy=ShareStrategy.TIME_SLICING)
    node.driver.prepare(node.claim_of(one, share(0), name="a"))
    node.driver.prepare(node.claim_of(two, share(0, 1), name="b"))
    file = node.driver.plugin / "claims/uid-a.json"
    payload = unseal(file.read_bytes())
    payload["steps"][0]["limitedBy"] = "magic"
    file.write_bytes(seal(payload))
    node.make_again(group)
    node.look_after()
    assert node.limit(group, 1) == node.share_mib


def test_limits_are_set_even_if_the_kubelet_lists_no_pods(node: LimitedNode) -> None:
    pods = [node.pod() for _ in range(3)]
    for number, (pod, _) in enumerate(pods):
        node.driver.prepare(node.claim_of(pod, share(number), name=f"claim-{number}"))
    for _, group in pods:
        node.make_again(group)
    node.is_kubelet_away = True
    node.look_after()
    assert [node.limit(group) for _, group in pods] == [node.share_mib] * 3


def test_a_later_pod_keeps_what_a_claim_of_its_own_gives_it(node: LimitedNode) -> None:
    (first, _), (second, group) = node.pod(), node.pod()
    ref = node.claim_of(first, share(0))
    node.driver.prepare(ref)
    node.driver.prepare(node.claim_of(second, share(1), name="before"))
    node.reserve(ref, first, second)
    node.look_after()
    assert node.limit(group) == node.share_mib


def test_the_only_pod_that_is_left_gets_the_place_of_one_that_is_gone(node: LimitedNode) -> None:
    (first, group), (second, beside) = node.pod(), node.pod()
    ref = node.claim_of(first, share(0))
    node.driver.prepare(ref)
    node.reserve(ref, second, "uid-of-a-former-pod-of-its-name")
    node.look_after()
    assert node.limit(beside) == 1  # its group is there still, and so may be its processes
    node.end(group)
    node.look_after()
    assert node.limit(beside) == node.share_mib
    node.driver.unprepare(ref)
    assert (node.limit(beside), node.others()) == (None, None)
    assert node.left() == []


def test_an_escaped_container_is_limited_and_its_pod_gets_an_event(node: LimitedNode) -> None:
    pod, group = node.pod(2)
    node.driver.prepare(node.claim_of(pod, share(0)))
    container = next(group.glob("*.scope"))
    node.session.set_memory_limit(node.uuid(0), container, None)
    node.look_after()
    assert node.limit(container) == node.share_mib
    assert [reason for _, reason, _ in node.events.posted] == [ESCAPED]
    node.look_after()
    assert len(node.events.posted) == 1


def test_an_escaped_container_is_limited_to_its_pods_claims(node: LimitedNode) -> None:
    pod, group = node.pod(2)
    for number in range(2):
        node.driver.prepare(node.claim_of(pod, share(number), name=f"claim-{number}"))
    container = next(group.glob("*.scope"))
    node.session.set_memory_limit(node.uuid(0), container, None)
    node.look_after()
    assert node.limit(container) == 2 * node.share_mib


def test_a_limit_that_cannot_be_reset_is_reported_once(node: LimitedNode) -> None:
    pod, group = node.pod()
    node.driver.prepare(node.claim_of(pod, share(0)))
    node.make_again(group)
    node.machine.fail_call("nvmlDeviceSetMemoryLimits_v1", 4, uuid=node.uuid(0))
    for _ in range(2):
        node.look_after()
    assert [reason for _, reason, _ in node.events.posted] == [NOT_IN_FORCE]
    node.machine.clear_faults()
    node.look_after()
    assert node.limit(group) == node.share_mib


def test_later_pods_get_nothing_also_while_the_first_ones_limit_cannot_be_set(
    node: LimitedNode,
) -> None:
    (first, group), (second, later) = node.pod(), node.pod()
    ref = node.claim_of(first, share(0))
    node.driver.prepare(ref)
    node.make_again(group)
    node.reserve(ref, first, second)
    node.machine.fail_call("nvmlDeviceSetMemoryLimits_v1", 4, uuid=node.uuid(0), times=1)
    node.look_after()
    assert (node.limit(group), node.limit(later)) == (1, 1)


def test_a_lost_records_limit_of_all_pods_is_removed(node: LimitedNode) -> None:
    lost = node.claim_of(node.pod()[0], share(0))
    node.driver.prepare(lost)
    node.driver.claims.ledger.delete(lost.uid)
    node.look_after()
    assert node.others() is None


def test_a_claim_that_comes_before_a_look_has_the_lock_keeps_the_limit_of_all_pods(
    node: LimitedNode,
) -> None:
    lost = node.claim_of(node.pod()[0], share(0))
    node.driver.prepare(lost)
    node.driver.claims.ledger.delete(lost.uid)
    pod, group = node.pod()
    late = node.claim_of(pod, share(1), name="late")

    class LateLocks(NodeLocks):
        def gpus(self, uuids: Iterable[str], deadline: float) -> AbstractContextManager[None]:
            node.driver.prepare(late)
            return super().gpus(uuids, deadline)

    node.watch._locks = LateLocks(node.root / "locks", time.monotonic, on_other=lambda: None)
    node.look_after()
    assert (node.limit(group), node.others()) == (node.share_mib, 1)
    node.watch._locks.close()
