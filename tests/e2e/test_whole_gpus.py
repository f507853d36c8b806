"""Pods get whole GPUs: the ways to ask, and who sees what."""

import pytest
from testbed.commands import wait_until

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.kubernetes import needs
from e2e.scene import NAMESPACE, Scene

pytestmark = pytest.mark.e2e

ALL = 8
"""GPUs of the simulated machine."""


def test_a_pods_containers_see_the_one_gpu_that_it_was_given(scene: Scene) -> None:
    pod = scene.pod(templates=[scene.template()], containers=("ctr", "other"))
    scene.running(pod)
    (uuid,) = scene.gpus(pod)
    assert uuid in all_uuids(scene)
    assert scene.gpus(pod, "other") == (uuid,)
    nodes = [name for name in scene.run_in(pod, "ls", "/dev").split() if name.startswith("nvidia")]
    numbered = [name for name in nodes if name.removeprefix("nvidia").isdigit()]
    assert len(numbered) == 1
    assert "nvidiactl" in nodes


def test_pods_keep_their_gpus_when_the_container_runtime_is_killed(scene: Scene) -> None:
    template = scene.template()
    pod = scene.pod(templates=[template])
    scene.running(pod)
    before = scene.gpus(pod), scene.container_ids(pod)
    cluster = scene.node.cluster
    cluster.stop(cluster.runtime, signal="KILL")
    cluster.start(cluster.runtime)
    later = scene.pod("later", templates=[template])
    scene.running(later)  # and until then the kubelet does not know that the runtime is back
    assert (scene.gpus(pod), scene.container_ids(pod)) == before
    assert scene.gpus(later) != scene.gpus(pod)


def test_a_claim_of_two_pods_is_freed_after_the_last(scene: Scene) -> None:
    claim = scene.claim()
    one, two = (scene.pod(name, claims=[claim]) for name in ("one", "two"))
    scene.running(one, two)
    gpu = scene.gpus(one)
    assert len(gpu) == 1
    assert scene.gpus(two) == gpu
    prepared = scene.node.place.left_over()

    scene.delete(one)
    assert scene.node.place.left_over() == prepared
    assert scene.gpus(two) == gpu

    scene.delete(two)
    assert scene.node.place.left_over() == []
    wait_until(
        lambda: "allocation" not in scene.api.get("ResourceClaim", claim, NAMESPACE)["status"],
        "the claim to lose its allocation",
        timeout=120,
    )


@needs(Feature.EXTENDED_RESOURCE)
def test_a_limit_of_nvidia_com_gpu_gives_that_many_gpus(scene: Scene) -> None:
    pod = scene.pod(limits={"nvidia.com/gpu": 2})
    scene.running(pod)
    assert len(set(scene.gpus(pod))) == 2
    (claim,) = scene.api.all("ResourceClaim", NAMESPACE)
    assert claim["metadata"]["annotations"]["resource.kubernetes.io/extended-resource-claim"]


def test_pods_of_a_template_get_a_gpu_each_and_one_too_many_waits(scene: Scene) -> None:
    template = scene.template()
    pods = [scene.pod(f"pod{number}", templates=[template]) for number in range(ALL)]
    scene.running(*pods, timeout=120)
    given = {pod: scene.gpus(pod) for pod in pods}
    assert {uuid for uuids in given.values() for uuid in uuids} == all_uuids(scene)

    late = scene.pod("late", templates=[template])
    assert "cannot allocate all claims" in scene.unschedulable(late)

    scene.delete(pods[3])
    scene.running(late)
    assert scene.gpus(late) == given[pods[3]]


def all_uuids(scene: Scene) -> set[str]:
    """The UUIDs of all GPUs that the driver has published."""
    return {
        device["attributes"]["uuid"]["string"]
        for one in scene.node.slices()
        for device in one.get("devices") or []
        if device["attributes"]["type"]["string"] == "gpu"
    }
