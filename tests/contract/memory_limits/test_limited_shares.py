"""Shares whose memory is limited on control groups."""

from pathlib import Path

import pytest

from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from dra_driver.claims.report.descriptions import description_of
from dra_driver.errors import ConfigError, TransientError
from dra_driver.sharing.steps import UseShares
from dra_driver.simulator import profile as profiles
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.machine import Machine
from worlds.limited_node import LimitedNode, share

LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


def words(node: LimitedNode, uid: str) -> str:
    """What status says of a claim's first device."""
    record = node.driver.claims.ledger.read(uid)
    assert record is not None
    return ", ".join(description_of(record, record.devices[0]).words)


def why(node: LimitedNode, uid: str) -> str:
    """Why nothing better limits a claim's memory, as its record says."""
    record = node.driver.claims.ledger.read(uid)
    assert record is not None
    (found,) = {step.why for step in record.steps if isinstance(step, UseShares)}
    return found


def test_an_over_asking_tenant_is_refused_and_its_neighbour_is_not(node: LimitedNode) -> None:
    (greedy, group), (modest, beside) = node.pod(), node.pod()
    large = node.claim_of(greedy, *map(share, range(6)), name="large")
    small = node.claim_of(modest, share(8), share(9), name="small")
    node.driver.prepare(large)
    node.driver.prepare(small)

    assert node.take(group, 6 * node.share_mib, pid=1)
    assert not node.take(group, 1, pid=2)
    assert not node.take(beside, 2 * node.share_mib + 1, pid=3)
    assert node.take(beside, 2 * node.share_mib, pid=3)
    assert "enforced by control groups (NVML)" in words(node, large.uid)


def test_after_the_end_limits_are_gone_and_others_have_the_gpu_again(node: LimitedNode) -> None:
    (pod, group), (other, free) = node.pod(), node.pod()
    ref = node.claim_of(pod, share(0))
    node.driver.prepare(ref)
    assert node.limit(group) == node.share_mib
    assert node.others() == 1
    assert not node.take(free, 10, pid=9)
    node.driver.unprepare(ref)
    assert (node.limit(group), node.others()) == (None, None)
    whole = node.claim_of(other, "gpu-0", name="whole")
    node.driver.prepare(whole)
    assert node.take(free, 20 * node.share_mib // 10, pid=9)
    assert node.limit(free) is None


def test_others_are_refused_until_the_last_share_is_given_back(node: LimitedNode) -> None:
    refs = [node.claim_of(node.pod()[0], share(n), name=f"c{n}") for n in range(3)]
    for ref in refs:
        node.driver.prepare(ref)
    for ref in refs:
        assert node.others() == 1
        node.driver.unprepare(ref)
    assert node.others() is None
    assert node.others(1) is None


def test_a_whole_gpu_and_another_gpu_are_not_touched(node: LimitedNode) -> None:
    (pod, _), (other, group) = node.pod(), node.pod()
    node.driver.prepare(node.claim_of(other, "gpu-1", name="whole"))
    node.driver.prepare(node.claim_of(pod, share(0)))
    assert (node.limit(group, 1), node.others(1)) == (None, None)
    assert node.take(group, 9 * node.share_mib, pid=1, minor=1)


def test_two_claims_of_a_pod_on_one_gpu_have_the_sum_until_one_goes(node: LimitedNode) -> None:
    pod, group = node.pod()
    first = node.claim_of(pod, share(0), name="first")
    second = node.claim_of(pod, share(1), share(2), name="second")
    node.driver.prepare(first)
    node.driver.prepare(second)
    assert node.limit(group) == 3 * node.share_mib
    node.driver.unprepare(first)
    assert node.limit(group) == 2 * node.share_mib
    node.driver.unprepare(second)
    assert (node.limit(group), node.others()) == (None, None)


@pytest.mark.parametrize(("pods", "text"), [(2, r"reserved for 2 pods \(pod-"), (0, "for no pod")])
def test_a_claim_of_several_pods_is_refused_and_nothing_is_left(
    node: LimitedNode, pods: int, text: str
) -> None:
    made = [node.pod() for _ in range(pods)]
    ref = node.claim_of("", share(0))
    node.reserve(ref, *(pod for pod, _ in made))
    with pytest.raises(ConfigError, match=text + ".*give each pod a claim of its own"):
        node.driver.prepare(ref)
    assert node.left() == []
    assert all(node.limit(group) is None for _, group in made)
    assert node.others() is None


def test_a_share_for_a_pod_group_is_refused_with_what_to_do_instead(node: LimitedNode) -> None:
    pod, group = node.pod()
    for pods in ((), (pod,)):
        ref = node.claim_of("", share(0))
        node.reserve(ref, *pods)
        node.reserve_for_group(ref, "gang")
        with pytest.raises(ConfigError, match="is reserved for PodGroup gang: memory") as refused:
            node.driver.prepare(ref)
        assert "take the claim out of the PodGroup's spec.resourceClaims" in str(refused.value)
        assert node.left() == []
        assert (node.limit(group), node.others()) == (None, None)


def test_a_share_for_a_pod_group_is_prepared_where_control_groups_are_not_used(
    tmp_path: Path,
) -> None:
    LimitedNode.made(tmp_path).close()
    node = LimitedNode(tmp_path, by_groups=False)
    ref = node.claim_of("", share(0))
    node.reserve(ref)
    node.reserve_for_group(ref, "gang")
    assert node.driver.prepare(ref)
    node.driver.unprepare(ref)
    assert node.left() == []
    node.close()


def test_a_pod_without_a_group_is_not_prepared(node: LimitedNode) -> None:
    ref = node.claim_of("no-such-pod", share(0))
    with pytest.raises(TransientError, match="no-such-pod has no control group"):
        node.driver.prepare(ref, seconds=0.2)
    assert node.left() == []
    assert node.others() is None


def test_unprepare_needs_no_group_of_the_pod(node: LimitedNode) -> None:
    pod, group = node.pod()
    ref = node.claim_of(pod, share(0))
    node.driver.prepare(ref)
    node.end(group)
    node.driver.unprepare(ref)
    assert node.left() == []
    assert node.others() is None


def test_unprepare_of_a_gone_pod_among_others_needs_no_nvml(node: LimitedNode) -> None:
    (pod, group), (other, _) = node.pod(), node.pod()
    ref = node.claim_of(pod, share(0))
    node.driver.prepare(ref)
    node.driver.prepare(node.claim_of(other, share(1), name="other"))
    node.end(group)
    node.machine.fail_call("nvmlInit_v2", 999)
    node.session.close()
    node.driver.unprepare(ref)
    assert node.driver.cleanups(ref) == []


def test_a_limit_that_cannot_be_taken_back_is_a_pending_cleanup(node: LimitedNode) -> None:
    pod, group = node.pod()
    ref = node.claim_of(pod, share(0))
    node.driver.prepare(ref)
    node.machine.fail_call("nvmlDeviceSetMemoryLimits_v1", 4, uuid=node.uuid(0))
    node.driver.unprepare(ref)
    assert "may not set memory limits" in node.driver.cleanups(ref)[0][1]
    node.machine.clear_faults()
    assert node.driver.reconciler(ReconcileTiming()).mend() == set()
    assert (node.limit(group), node.others()) == (None, None)
    assert node.left() == []


def test_with_mps_the_kernel_holds_the_memory_and_mps_the_threads(node: LimitedNode) -> None:
    node.divide(0, combines=True)
    pod, group = node.pod()
    ref = node.claim_of(pod, *(share(n, kind="mps-share") for n in (0, 1)))
    node.driver.prepare(ref)
    env = node.driver.env(ref, share(0, kind="mps-share"))
    assert env[THREADS] == "20"
    assert LIMIT not in env
    (domain,) = node.mps.requests.list()
    desired = node.mps.requests.desired(domain)
    assert desired is not None
    assert [device.pinned_memory_mib for device in desired.devices] == [None]
    assert not node.take(group, 2 * node.share_mib + 1, pid=1)
    node.driver.unprepare(ref)
    assert node.limit(group) is None
    assert node.mps.requests.claims() == frozenset()


def test_a_mps_domain_of_equal_shares_has_no_memory_limit_of_its_own(node: LimitedNode) -> None:
    node.divide(0)
    node.driver.prepare(node.claim_of(node.pod()[0], share(0, kind="single-share")))
    (domain,) = node.mps.requests.list()
    desired = node.mps.requests.desired(domain)
    assert desired is not None
    assert desired.active_thread_percentage == 10
    assert desired.devices[0].pinned_memory_mib is None


def test_where_the_driver_counts_no_container_is_given_a_hook(node: LimitedNode) -> None:
    ref = node.claim_of(node.pod()[0], share(0))
    node.driver.prepare(ref)
    (device,) = node.driver.spec(ref)["devices"]
    assert device["containerEdits"].get("hooks", []) == []
    assert node.driver.env(ref, share(0)) == {}


def test_before_r615_mps_limits_memory_or_nothing_does_and_the_reason_is_kept(
    tmp_path: Path,
) -> None:
    node = LimitedNode.made(tmp_path, "off", driver="580.95.05")
    first, second = (
        node.claim_of(node.pod()[0], share(0, n, kind=kind), name=f"c{n}")
        for n, kind in enumerate(("share", "mps-share"))
    )
    node.divide(1, combines=True)
    node.driver.prepare(first)
    node.driver.prepare(second)
    assert words(node, first.uid) == "1 of 10 shares, nothing limits memory"
    assert words(node, second.uid).endswith("enforced by MPS")
    assert (
        node.driver.env(second, share(0, 1, kind="mps-share"))[LIMIT]
        == f"{node.uuid(1)}={node.share_mib}M"
    )
    assert "580.95.05 is older than R615" in why(node, second.uid)


def test_several_pods_share_a_claim_without_control_groups(tmp_path: Path) -> None:
    LimitedNode.made(tmp_path).close()
    node = LimitedNode(tmp_path, by_groups=False)
    (one, group), (two, _) = node.pod(), node.pod()
    ref = node.claim_of("", share(0))
    node.reserve(ref, one, two)
    node.driver.prepare(ref)
    assert (node.limit(group), node.others()) == (None, None)


def test_later_tenants_are_limited_like_the_existing_ones(tmp_path: Path) -> None:
    node = LimitedNode.made(tmp_path)
    node.divide(0)
    first = node.claim_of(node.pod()[0], share(0, kind="single-share"), name="first")
    node.driver.prepare(first)
    node.close()
    later = LimitedNode(tmp_path, by_groups=False)
    later.divide(0)
    pod, _ = later.pod()
    ref = later.claim_of(pod, share(1, kind="single-share"), name="second")
    later.driver.prepare(ref)  # one daemon cannot have two sets of limits
    assert len(later.mps.requests.claims()) == 2
    later.driver.unprepare(ref)
    later.driver.unprepare(first)
    assert (later.others(), later.mps.requests.claims()) == (None, frozenset())


def test_limits_vanish_with_a_driver_that_supported_them(node: LimitedNode) -> None:
    ref = node.claim_of(node.pod()[0], share(0))
    node.driver.prepare(ref)
    node.close()
    older = profiles.changed(profiles.load("h100x8"), {"driver_version": "580.95.05"})
    node.machine.destroy()
    options = Options(userspace="stand-in", cgroup_root=node.groups.root)
    Machine.create(node.root / "driver", older, options)
    after = LimitedNode(node.root, "off")
    after.driver.unprepare(ref)
    assert after.left() == []
