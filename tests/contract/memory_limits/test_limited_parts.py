"""Consumable shares whose memory is limited on control groups."""

from pathlib import Path
from typing import Any

from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.report.descriptions import description_of
from worlds.limited_node import LimitedNode, share

GPU = "gpu-1"
"""GPU 0 is divided into equal shares."""

GIB = 1024


def claim(
    node: LimitedNode,
    pod: str,
    name: str,
    *memory: str,
    devices: tuple[str, ...] = (GPU,),
    cores: int = 0,
    **facts: Any,
) -> ClaimRef:
    """Allocate a claim with a share of a device for each amount of memory, for one pod."""
    places = devices if len(devices) == len(memory) else devices * len(memory)
    ref = node.claim_of(pod, *places, name=name, **facts)
    for number, (result, amount) in enumerate(
        zip(node.driver.api.results(ref), memory, strict=True)
    ):
        result["shareID"] = f"{name}-{number}"
        result["consumedCapacity"] = {"memory": amount, "cores": str(cores)}
    return ref


def words(node: LimitedNode, ref: ClaimRef) -> str:
    """What status says of a claim's first device."""
    record = node.driver.claims.ledger.read(ref.uid)
    assert record is not None
    return ", ".join(description_of(record, record.devices[0]).words)


def total(node: LimitedNode) -> int:
    return (node.gpu(1).memory_bytes or 0) // 1024**2


def test_without_a_config_each_claim_is_limited_to_what_it_consumed(node: LimitedNode) -> None:
    (greedy, group), (modest, beside) = node.pod(), node.pod()
    first = claim(node, greedy, "first", "10Gi")
    second = claim(node, modest, "second", "40Gi")
    node.driver.prepare(first)
    node.driver.prepare(second)
    assert (node.limit(group, 1), node.limit(beside, 1)) == (10 * GIB, 40 * GIB)
    assert not node.take(group, 10 * GIB + 1, pid=1, minor=1)
    assert node.take(beside, 40 * GIB, pid=2, minor=1)
    assert node.take(group, 10 * GIB, pid=1, minor=1)
    assert words(node, first) == (
        "consumes 10240 MiB, 10240 MiB, enforced by control groups (NVML)"
    )
    node.driver.unprepare(first)
    assert (node.limit(group, 1), node.limit(beside, 1)) == (None, 40 * GIB)
    node.driver.unprepare(second)
    assert (node.limit(beside, 1), node.others(1)) == (None, None)
    assert node.left() == []


def test_a_claim_without_a_memory_request_has_no_limit(node: LimitedNode) -> None:
    (free, group), (bound, beside) = node.pod(), node.pod()
    first, second = claim(node, free, "free", "0"), claim(node, bound, "bound", "10Gi")
    node.driver.prepare(first)
    node.driver.prepare(second)
    assert node.limit(group, 1) == total(node)
    assert words(node, first) == "consumes no memory or SMs, no limit of memory"
    assert node.take(beside, 10 * GIB, pid=1, minor=1)
    assert not node.take(beside, 1, pid=1, minor=1)
    assert node.take(group, 50 * GIB, pid=2, minor=1)


def test_requests_of_a_claim_add_up_and_one_without_a_limit_frees_them(node: LimitedNode) -> None:
    (pod, group), (other, beside) = node.pod(), node.pod()
    both = claim(node, pod, "both", "10Gi", "5Gi", requests=("a", "b"))
    free = claim(node, other, "free", "10Gi", "0", requests=("a", "b"))
    node.driver.prepare(both)
    node.driver.prepare(free)
    assert (node.limit(group, 1), node.limit(beside, 1)) == (15 * GIB, total(node))


def test_claims_from_before_control_groups_are_served_as_they_were_and_so_are_later_ones(
    tmp_path: Path,
) -> None:
    before = LimitedNode.made(tmp_path)
    before.close()
    before = LimitedNode(tmp_path, by_groups=False)
    pod, group = before.pod()
    first = claim(before, pod, "first", "10Gi")
    before.driver.prepare(first)
    plain = words(before, first)
    before.close()

    after = LimitedNode(tmp_path)
    after.driver.api.claims |= before.driver.api.claims
    after.driver.prepare(first)
    assert (words(after, first), after.limit(group, 1)) == (plain, None)
    (later, beside), (third, own) = after.pod(), after.pod()
    second = claim(after, later, "second", "10Gi")
    after.driver.prepare(second)
    assert (after.limit(beside, 1), after.others(1)) == (None, None)
    assert after.take(group, GIB, pid=1, minor=1)
    after.machine.release_memory(after.uuid(1), pid=1)
    for ref in (first, second):
        after.driver.unprepare(ref)
    last = claim(after, third, "last", "10Gi")
    after.driver.prepare(last)
    assert after.limit(own, 1) == 10 * GIB
    after.driver.unprepare(last)
    assert after.left() == []
    after.close()


def test_shares_of_both_kinds_in_a_claim_are_limited_each_on_its_gpu(node: LimitedNode) -> None:
    pod, group = node.pod()
    ref = node.claim_of(pod, share(0), GPU, name="claim", requests=("equal", "part"))
    result = node.driver.api.results(ref)[1]
    result |= {"shareID": "claim-1", "consumedCapacity": {"memory": "10Gi"}}
    node.driver.prepare(ref)
    assert (node.limit(group), node.limit(group, 1)) == (node.share_mib, 10 * GIB)
