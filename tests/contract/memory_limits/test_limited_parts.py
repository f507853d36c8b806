"""Consumable shares whose memory is limited on control groups, under both of NVML's backends."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import make
from dra_driver.cdi.spec import claim_device_name
from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.model.steps import ClaimStep
from dra_driver.claims.report.descriptions import description_of
from dra_driver.errors import ConfigError
from dra_driver.sharing.steps import Backend, MemoryPart, UseShares
from worlds.limited_node import LimitedNode, share

LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
HOOK_LIMIT = "NVIDIA_GPU_MEMORY_LIMIT"
MPS = make.config(sharing={"strategy": "MPS"})
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


def env(node: LimitedNode, ref: ClaimRef, number: int = 0, device: str = GPU) -> dict[str, str]:
    name = claim_device_name(ref.uid, device, f"{ref.name}-{number}")
    return node.driver.env(ref, name.removeprefix(f"{ref.uid}-"))


def words(node: LimitedNode, ref: ClaimRef) -> str:
    """What status says of a claim's first device."""
    record = node.driver.claims.records.read(ref.uid)
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


def test_with_mps_memory_is_the_groups_affair_and_threads_are_mps(node: LimitedNode) -> None:
    pod, group = node.pod()
    ref = claim(node, pod, "claim", "10Gi", cores=20, configs=[MPS])
    node.driver.prepare(ref)
    assert node.limit(group, 1) == 10 * GIB
    found = env(node, ref)
    assert found[THREADS] == "20"
    assert LIMIT not in found
    node.driver.unprepare(ref)
    assert node.limit(group, 1) is None
    assert node.mps.shared.claims() == frozenset()


def test_who_asked_for_no_memory_may_have_the_whole_gpus(node: LimitedNode) -> None:
    (free, group), (bound, beside) = node.pod(), node.pod()
    first, second = claim(node, free, "free", "0"), claim(node, bound, "bound", "10Gi")
    node.driver.prepare(first)
    node.driver.prepare(second)
    assert node.limit(group, 1) == total(node)
    assert words(node, first) == "consumes no memory or SMs, no limit of memory"
    assert node.take(beside, 10 * GIB, pid=1, minor=1)
    assert not node.take(beside, 1, pid=1, minor=1)
    assert node.take(group, 50 * GIB, pid=2, minor=1)


def test_others_have_no_memory_of_the_gpu_where_the_driver_counts(misc: LimitedNode) -> None:
    (pod, _), (_, other) = misc.pod(), misc.pod()
    ref = claim(misc, pod, "claim", "0")
    misc.driver.prepare(ref)
    assert not misc.take(other, 10, pid=1, minor=1)
    misc.driver.unprepare(ref)
    assert misc.take(other, 10, pid=1, minor=1)


def test_the_hook_has_what_the_claim_consumed(dmem: LimitedNode) -> None:
    ref = claim(dmem, dmem.pod()[0], "claim", "10Gi")
    dmem.driver.prepare(ref)
    assert env(dmem, ref)[HOOK_LIMIT] == str(10 * GIB)
    (device,) = dmem.driver.spec(ref)["devices"]
    assert [hook["hookName"] for hook in device["containerEdits"]["hooks"]] == ["createRuntime"]


def test_requests_of_a_claim_add_up_and_one_without_a_limit_frees_them(node: LimitedNode) -> None:
    (pod, group), (other, beside) = node.pod(), node.pod()
    both = claim(node, pod, "both", "10Gi", "5Gi", requests=("a", "b"))
    free = claim(node, other, "free", "10Gi", "0", requests=("a", "b"))
    node.driver.prepare(both)
    node.driver.prepare(free)
    assert (node.limit(group, 1), node.limit(beside, 1)) == (15 * GIB, total(node))


def test_two_claims_of_a_pod_add_up(misc: LimitedNode) -> None:
    pod, group = misc.pod()
    first, second = claim(misc, pod, "first", "10Gi"), claim(misc, pod, "second", "5Gi")
    misc.driver.prepare(first)
    misc.driver.prepare(second)
    assert misc.limit(group, 1) == 15 * GIB
    misc.driver.unprepare(first)
    assert misc.limit(group, 1) == 5 * GIB


def test_a_claim_of_two_pods_is_refused(node: LimitedNode) -> None:
    pods = [node.pod() for _ in range(2)]
    ref = claim(node, "", "claim", "10Gi")
    node.reserve(ref, *(pod for pod, _ in pods))
    with pytest.raises(ConfigError, match=r"reserved for 2 pods .*give each pod a claim"):
        node.driver.prepare(ref)
    assert node.left() == []
    assert [node.limit(group, 1) for _, group in pods] == [None, None]


def without_memory(step: ClaimStep) -> UseShares:
    """The step as it is read of a record that does not say what enforces memory."""
    assert isinstance(step, UseShares)
    nothing = Backend.NOTHING
    return replace(step, memory=MemoryPart(by=nothing, of_device=nothing, claim=step.memory.claim))


@pytest.mark.parametrize("says_what_enforces", [True, False])
def test_claims_from_before_control_groups_are_served_as_they_were_and_so_are_later_ones(
    tmp_path: Path, says_what_enforces: bool
) -> None:
    before = LimitedNode.made(tmp_path, "misc")
    before.close()
    before = LimitedNode(tmp_path, "misc", by_groups=False)
    pod, group = before.pod()
    first = claim(before, pod, "first", "10Gi")
    before.driver.prepare(first)
    if not says_what_enforces:
        record = before.driver.claims.records.read(first.uid)
        assert record is not None
        steps = tuple(map(without_memory, record.steps))
        before.driver.claims.records.write(replace(record, steps=steps))
    plain = words(before, first)
    before.close()

    after = LimitedNode(tmp_path, "misc")
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


def test_shares_of_both_kinds_in_a_claim_are_limited_each_on_its_gpu(misc: LimitedNode) -> None:
    pod, group = misc.pod()
    ref = misc.claim_of(pod, share(0), GPU, name="claim", requests=("equal", "part"))
    result = misc.driver.api.results(ref)[1]
    result |= {"shareID": "claim-1", "consumedCapacity": {"memory": "10Gi"}}
    misc.driver.prepare(ref)
    assert (misc.limit(group), misc.limit(group, 1)) == (misc.share_mib, 10 * GIB)
