"""docs/works-with.md says of Cluster Autoscaler and Karpenter what their own functions do.

Of KAI-Scheduler and Volcano it says what the scheduler's allocator does with the features that they
leave on.

Each sentence of their sections is a case here, or is marked there as only read.
"""

from collections.abc import Callable
from typing import Any

import pytest
from testbed.commands import TestbedError

import judge
from autoscalers import (
    GPU,
    by_limits,
    claim,
    classes,
    cluster,
    exactly,
    node,
    pod,
    printed,
)
from readiness import lacks

pytestmark = pytest.mark.neighbours

Object = dict[str, Any]
Printed = Callable[..., Any]

AKS = {"kubernetes.azure.com/accelerator": "nvidia"}
EIGHT = [f"gpu-{n}" for n in range(8)]
STAYS = {"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"}


def asked(group: str, name: str, question: Object) -> Object:
    try:
        program = judge.fetch(group, name)
    except TestbedError as error:
        lacks(group, str(error))
    (answer,) = judge.answers(program, [question])
    return answer


def autoscaler(*question: Any, **more: object) -> Object:
    return asked("autoscaler", "autoscaler-judge", cluster(*question, **more))


def karpenter(**question: object) -> Object:
    return asked("karpenter", "karpenter-judge", {"classes": classes()} | question)


@pytest.fixture
def slices(capsys: pytest.CaptureFixture[str]) -> Printed:
    return lambda *words: printed(capsys, *words)


@pytest.fixture
def two(slices: Printed) -> list[Object]:
    """The slices of two nodes with eight GPUs each."""
    return [
        *slices("--profile=h100x8", "--node-name=a"),
        *slices("--profile=h100x8", "--node-name=b"),
    ]


def test_a_node_whose_gpus_are_claimed_stays_and_an_idle_one_goes(two: list[Object]) -> None:
    found = autoscaler([node("a"), node("b")], two, [pod("w", "a")], [claim("w", *EIGHT, on="a")])
    used = {"resource": "gpu.nvidia.com/a", "utilization": 1}
    busy = {"ready": True, "goes": False, "reason": "NotUnderutilized"}
    assert found["nodes"]["a"] == used | busy
    assert found["nodes"]["b"]["utilization"] == 0
    assert found["nodes"]["b"]["goes"]


@pytest.mark.parametrize(
    "label", ["k8s.amazonaws.com/accelerator", "cluster-api/accelerator", *AKS]
)
def test_with_the_clouds_gpu_label_a_busy_node_is_unready_and_idle(
    two: list[Object], label: str
) -> None:
    nodes = [node("a", **{label: "nvidia"}), node("b")]
    pods, claims = [pod("w", "a")], [claim("w", *EIGHT, on="a")]
    found = autoscaler(nodes, two, pods, claims, gpuLabel=label)["nodes"]
    assert found["a"] == {"ready": False, "resource": GPU, "utilization": 0, "goes": True}
    assert found["b"]["ready"]


def test_an_annotation_keeps_a_seemingly_idle_node(two: list[Object]) -> None:
    nodes = [node("a", annotations=STAYS, **AKS), node("b")]
    found = autoscaler(nodes, two, [pod("w", "a")], [claim("w", *EIGHT, on="a")])["nodes"]["a"]
    assert (found["goes"], found["reason"]) == (False, "ScaleDownDisabledAnnotation")


def test_pods_with_limits_do_not_count(two: list[Object]) -> None:
    made, theirs = by_limits("w", *EIGHT, on="a")
    found = autoscaler([node("a"), node("b")], two, [made], [theirs])["nodes"]["a"]
    assert found["utilization"] == 0
    assert found["goes"]


def test_a_pod_that_is_not_to_be_evicted_keeps_its_node(two: list[Object]) -> None:
    made, theirs = by_limits("w", *EIGHT, on="a")
    made["metadata"]["annotations"] = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    found = autoscaler([node("a"), node("b")], two, [made], [theirs])["nodes"]["a"]
    assert (found["goes"], found["reason"]) == (False, "BlockedByPod")


def test_a_new_node_helps_a_pod_with_a_claim(two: list[Object]) -> None:
    claims = [claim("w", *EIGHT, on="a"), claim("v", *EIGHT, on="b"), claim("new")]
    pods = [pod("w", "a"), pod("v", "b")]
    found = autoscaler([node("a"), node("b")], two, pods, claims, pending=pod("new"))
    assert "noHelp" not in found


def test_a_new_node_helps_a_pod_with_limits(two: list[Object]) -> None:
    found = autoscaler([node("a"), node("b")], two, pending=pod("new", gpus=1))
    assert "noHelp" not in found


def test_a_template_helps_where_the_group_has_no_node_of_its_own(slices: Printed) -> None:
    template = slices("--instance-type=p5.48xlarge", "--template=cluster-autoscaler")
    found = autoscaler(
        [node("a")], [], claims=[claim("new")], pending=pod("new"), template=template
    )
    assert "noHelp" not in found


def test_an_empty_pool_is_no_template(slices: Printed) -> None:
    template = slices("--instance-type=p5.48xlarge", "--template=cluster-autoscaler")
    for one in template:
        one["spec"]["pool"]["resourceSliceCount"] = 0
    found = autoscaler(
        [node("a")], [], claims=[claim("new")], pending=pod("new"), template=template
    )
    assert found["noHelp"]


def test_a_node_is_ready_once_all_its_slices_are_there(slices: Printed) -> None:
    offered = slices("--profile=h100x8", "--node-name=a", "--mig=on-demand")
    assert len(offered) > 1
    states = [
        autoscaler([node("a")], part, template=offered)["nodes"]["a"]["ready"]
        for part in (offered, offered[1:], [])
    ]
    assert states == [True, False, False]


def used(offered: list[Object], *devices: str) -> float:
    found = autoscaler([node("a")], offered, [pod("w", "a")], [claim("w", *devices, on="a")])
    return float(found["nodes"]["a"]["utilization"])


def test_whole_gpus_beside_gpus_with_counters_do_not_count(slices: Printed) -> None:
    offered = slices("--profile=h100x8-mig", "--node-name=a")
    assert used(offered, "gpu-0", "gpu-1", "gpu-2", "gpu-3") == 0
    assert used(offered, "gpu-4-mig-1g10gb-19-0") > 0


def test_a_gpu_with_any_mig_device_counts_as_full(slices: Printed) -> None:
    offered = slices("--profile=h100x8", "--node-name=a", "--mig=on-demand")
    assert used(offered, "gpu-0") == pytest.approx(1 / 8)
    assert used(offered, "gpu-0-mig-1g10gb-19-0") == pytest.approx(1 / 8)
    assert used(offered, "gpu-1", "gpu-0-mig-1g10gb-19-0") == pytest.approx(2 / 8)


def test_a_part_of_a_gpu_counts_as_all_of_it(slices: Printed) -> None:
    offered = slices("--profile=h100x8", "--node-name=a", "--consumable-shares=memory")
    assert used(offered, "gpu-0") == pytest.approx(1 / 8)


def fitting(slices: Printed, spec: Object, *words: str) -> Object:
    """What Karpenter finds for a claim among machines with eight H100, with two A100, with none."""
    types = {
        name: slices(f"--instance-type={name}", "--template=karpenter", *words)
        for name in ("p5.48xlarge", "a2-highgpu-2g")
    }
    return karpenter(types=types | {"m5.large": {}}, claims=[claim("new", spec=spec)])


def requests(*all_: Object, **more: object) -> Object:
    return {"requests": [{"name": f"r{n}", "exactly": one} for n, one in enumerate(all_)], **more}


def test_karpenter_takes_machines_with_the_gpus(slices: Printed) -> None:
    assert fitting(slices, requests(exactly())).keys() == {"devices"}
    assert fitting(slices, requests(exactly()))["devices"].keys() == {
        "p5.48xlarge",
        "a2-highgpu-2g",
    }
    assert fitting(slices, requests(exactly(count=4)))["devices"].keys() == {"p5.48xlarge"}
    h100 = "device.attributes['gpu.nvidia.com'].productName.startsWith('NVIDIA H100')"
    assert fitting(slices, requests(exactly(h100)))["devices"].keys() == {"p5.48xlarge"}


def mig(profile: str, count: int = 1) -> Object:
    wanted = f"device.attributes['gpu.nvidia.com'].?profile.orValue('') == '{profile}'"
    return exactly(wanted, of="mig.nvidia.com", count=count)


def test_karpenter_counts_what_mig_devices_take_from_their_gpu(slices: Printed) -> None:
    def of(*all_: Object) -> Object:
        return fitting(
            slices, requests(*all_), "--mig=on-demand", "--mig-profiles=1g.10gb,3g.40gb,1g.5gb"
        )

    assert of(mig("3g.40gb", 16))["devices"].keys() == {"p5.48xlarge"}
    assert "devices" not in of(mig("3g.40gb", 17)) or of(mig("3g.40gb", 17))["devices"] in (
        {},
        None,
    )


def test_karpenter_knows_parts_by_capacity(slices: Printed) -> None:
    def of(memory: str) -> Object:
        wanted = exactly(capacity={"requests": {"memory": memory}})
        return fitting(slices, requests(wanted), "--consumable-shares=memory")

    assert of("60Gi")["devices"].keys() == {"p5.48xlarge"}
    assert of("30Gi")["devices"].keys() == {"p5.48xlarge", "a2-highgpu-2g"}


def test_karpenter_knows_alternatives(slices: Printed) -> None:
    h200 = "device.attributes['gpu.nvidia.com'].productName.startsWith('NVIDIA H200')"
    either = [{"name": "h200"} | exactly(h200), {"name": "any"} | exactly()]
    spec = {"requests": [{"name": "gpu", "firstAvailable": either}]}
    assert fitting(slices, spec)["devices"].keys() == {"p5.48xlarge", "a2-highgpu-2g"}


def test_karpenter_knows_equal_attributes_by_bindings_but_not_distinct_ones(
    slices: Printed,
) -> None:
    def of(kind: str) -> Object:
        constraints = [{kind: "gpu.nvidia.com/parentUUID"}]
        both = requests(mig("1g.10gb"), mig("3g.40gb"), constraints=constraints)
        return fitting(slices, both, "--mig=on-demand")

    (devices,) = of("matchAttribute")["devices"]["p5.48xlarge"].values()
    assert len({name.partition("-mig")[0] for name in devices}) == 1
    assert "DistinctAttribute constraints not done yet" in of("distinctAttribute")["error"]


def test_karpenter_matches_no_selector_on_what_only_a_node_can_tell(slices: Printed) -> None:
    newer = "device.attributes['gpu.nvidia.com']{}.isGreaterThan(semver('500.0.0'))"
    failing = fitting(slices, requests(exactly(newer.format(".driverVersion"))))
    assert failing
    found = fitting(
        slices, requests(exactly(newer.format(".driverVersion"))), "--driver-version=580.95.05"
    )
    assert found["devices"].keys() == {"p5.48xlarge", "a2-highgpu-2g"}


def test_karpenter_waits_for_resource_names_that_no_node_has(slices: Printed) -> None:
    offered = slices("--profile=h100x8", "--node-name=a", "--mig=on-demand")
    assert karpenter(node=node("a"), slices=offered).get("awaited", "") == ""
    assert karpenter(node=node("a"), slices=offered[1:])["awaited"] == "gpu.nvidia.com"
    limits = karpenter(node=node("a"), slices=offered, requests={GPU: "1"})
    assert limits["awaited"] == GPU


def allocated(slices: list[Object], *claims: Object, **features: bool) -> bool:
    """Whether claims fit for the scheduler's allocator, with no feature but these."""
    question = {
        "slices": slices,
        "classes": classes(),
        "node": node("a"),
        "claims": claims,
        "taken": [],
        "features": features,
    }
    return bool(asked("judge", "allocation-judge", question)["fits"])


# Of Volcano 1.15.0: those of feature gates that are on in Kubernetes 1.35, with which it is built.
LEFT_ON = {"KAI-Scheduler": {}, "Volcano": {"AdminAccess": True, "PrioritizedList": True}}
every_scheduler = pytest.mark.parametrize("on", LEFT_ON.values(), ids=LEFT_ON)


@every_scheduler
def test_a_scheduler_places_whole_gpus_but_none_with_counters(
    slices: Printed, on: dict[str, bool]
) -> None:
    without = slices("--profile=h100x8", "--node-name=a")
    assert allocated(without, claim("new", spec=requests(exactly(count=8))), **on)
    counted = slices("--profile=h100x8", "--node-name=a", "--mig=on-demand")
    assert not allocated(counted, claim("new"), **on)
    assert allocated(counted, claim("new"), **on, PartitionableDevices=True)


@every_scheduler
def test_a_scheduler_ignores_taints(slices: Printed, on: dict[str, bool]) -> None:
    offered = slices("--profile=h100x8", "--node-name=a")
    for device in offered[0]["spec"]["devices"]:
        device["taints"] = [{"key": "gpu.nvidia.com/xid", "effect": "NoSchedule"}]
    assert allocated(offered, claim("new"), **on)
    assert not allocated(offered, claim("new"), **on, DeviceTaints=True)


@every_scheduler
def test_a_scheduler_gives_each_part_a_gpu(slices: Printed, on: dict[str, bool]) -> None:
    offered = slices("--profile=h100x8", "--node-name=a", "--consumable-shares=memory")
    third = requests(exactly(capacity={"requests": {"memory": "26Gi"}}))
    parts = [claim(f"part-{n}", spec=third) for n in range(24)]
    assert allocated(offered, *parts[:8], **on)
    assert not allocated(offered, *parts[:9], **on)
    assert allocated(offered, *parts, **on, ConsumableCapacity=True)
