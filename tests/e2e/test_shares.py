"""Shares of one GPU on a real cluster: the device plugin's config file, and what pods get by it.

The Deployment and the files are those of device plugin users. One node with one simulated H100.
"""

import json
from collections.abc import Iterator

import pytest
from testbed import mps
from testbed.api import Object
from testbed.cluster import Cluster
from testbed.commands import wait_until
from testbed.pods import STAY, container, is_ready

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.conftest import h100x1
from e2e.explaining import explain
from e2e.kubernetes import counters_are_cheap, needs
from e2e.scene import NAMESPACE, Scene
from e2e.shares import (
    GPU,
    LIMIT,
    THREADS,
    Shares,
    config,
    environment,
    shares_of,
    unshared_scene,
)
from e2e.sharing import PIPE

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.stream("two"),
    needs(Feature.COUNTERS, Feature.EXTENDED_RESOURCE),
]

LABEL = "nvidia.com/device-plugin.config"


@pytest.fixture(scope="module")
def shares(lasting: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shares]:
    folder = tmp_path_factory.mktemp("one")
    with shares_of(h100x1(folder), folder, lasting) as found:
        yield found


@pytest.fixture
def scene(shares: Shares, request: pytest.FixtureRequest) -> Iterator[Scene]:
    yield from unshared_scene(shares, request)


def deployment(
    scene: Scene, count: int, limits: dict[str, str], *, called: str = "inference"
) -> str:
    """Make a Deployment as device plugin users have it, with their RuntimeClass."""
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "runc"}
    runtime_class = runtime | {"metadata": {"name": "nvidia"}}
    scene.node.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(runtime_class))
    name = scene.name(called)
    spec: Object = {
        "runtimeClassName": "nvidia",
        "terminationGracePeriodSeconds": 1,
        "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [container("ctr", {"limits": limits}, STAY)],
    }
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    body = {
        "replicas": count,
        "selector": {"matchLabels": {"app": name}},
        "strategy": {"type": "Recreate"},
        "template": template,
    }
    return scene.make("Deployment", called, {"spec": body})


def running(scene: Scene, app: str, count: int) -> list[str]:
    """Wait until exactly so many pods of a Deployment run, and the others have no place."""

    def look() -> list[str] | None:
        pods = scene.api.all("Pod", NAMESPACE, labelSelector=f"app={app}")
        pods = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        ready = [pod["metadata"]["name"] for pod in pods if is_ready(pod)]
        return ready if len(ready) == count else None

    return wait_until(look, f"{count} pods of {app} to run", timeout=90)


def test_the_deployment_of_a_device_plugin_user_runs_four_times_on_one_gpu(
    shares: Shares, scene: Scene
) -> None:
    app = deployment(scene, 4, {GPU: "1"})
    (first,) = running(scene, app, 1)
    others = {pod["metadata"]["name"] for pod in scene.api.all("Pod", NAMESPACE)} - {first}
    assert len(others) == 3
    for pod in others:
        scene.unschedulable(pod)
    shares.write(config("timeSlicing", 4))
    if counters_are_cheap():
        shares.wait(4)  # beside the whole GPU, which the first pod keeps
        assert "gpu-0" in scene.node.devices()
        scene.api.delete("Pod", first, NAMESPACE)
    else:  # a pod that waits could get the whole GPU before it is divided
        scale = ("--namespace", NAMESPACE, "scale", f"deployment/{app}")
        scene.node.cluster.kubectl(*scale, "--replicas=0")
        shares.wait(4)
        assert "gpu-0" not in scene.node.devices()
        scene.node.cluster.kubectl(*scale, "--replicas=4")
    pods = running(scene, app, 4)
    assert len({scene.gpus(pod) for pod in pods}) == 1
    assert "1 of 4 shares" in shares.status()
    for pod in pods:
        made = scene.api.get("Pod", pod, NAMESPACE)["status"]["extendedResourceClaimStatus"]
        for told in (pod, made["resourceClaimName"]):
            said = scene.warning(told, "GPUMemoryNotLimited")
            assert "time-slicing divides no memory" in said


@pytest.mark.driver(WHOLE_GPUS_BESIDE_SHARES="always")
def test_eight_and_two_of_ten_shares_are_limited_to_eighty_and_twenty_percent(
    mps_shares: Shares, scene: Scene
) -> None:
    mps_shares.set(config("mps", 10, failRequestsGreaterThanOne=False), 10)
    large = scene.pod("large", limits={GPU: 8})
    small = scene.pod("small", limits={GPU: 2})
    scene.running(large, small)
    third = scene.pod("third", limits={GPU: 1})
    whole = scene.pod("whole", claims=[scene.claim("whole")])
    scene.unschedulable(third)
    scene.unschedulable(whole)
    (gpu,) = scene.gpus(large)
    assert scene.gpus(small) == (gpu,)
    tenth = mps_shares.memory_mib()
    for pod, percent in ((large, 80), (small, 20)):
        env = environment(scene, pod)
        assert env[PIPE] == "/tmp/nvidia-mps"
        assert env[THREADS] == str(percent)
        assert env[LIMIT] == f"{gpu}={tenth * percent // 10}M"
    assert len(set(mps.processes(scene.node.place.plugins).values())) == 1
    scene.delete(large)
    scene.running(third)
    # There is no place for a whole GPU either now: two others have shares of it.
    late = scene.pod("late", claims=[scene.claim("late")])
    scene.unschedulable(late)
    scene.unschedulable(whole)
    scene.delete(late, small, third)
    scene.running(whole)
    assert scene.gpus(whole) == (gpu,)
    assert PIPE not in environment(scene, whole)


def test_a_request_for_several_of_which_it_may_have_one_waits_and_holds_no_share(
    shares: Shares, scene: Scene
) -> None:
    shares.set(config("timeSlicing", 4, failRequestsGreaterThanOne=True), 4)
    claims = scene.api.all("ResourceClaim", NAMESPACE)
    pod = scene.pod(limits={GPU: 4})
    message = scene.warning(pod, "FailedScheduling")
    assert "several shares, and here a request may have only one" in message
    assert "failRequestsGreaterThanOne; ask for 1" in message
    assert "nodeName" not in scene.api.get("Pod", pod, NAMESPACE)["spec"]
    assert "share config allows a request only one" in explain(scene, pod)[0]
    others = [scene.pod(f"other-{number}", limits={GPU: 1}) for number in range(4)]
    for other in others:
        scene.running(other)
    scene.delete(pod)
    for other in others:
        scene.delete(other)
    assert len(scene.api.all("ResourceClaim", NAMESPACE)) == len(claims)


def test_the_nodes_label_chooses_among_named_configs(mps_shares: Shares, scene: Scene) -> None:
    shares = mps_shares
    shares.write(config("timeSlicing", 3), "tesla-t4")
    shares.write(config("mps", 6, failRequestsGreaterThanOne=False), "a100-40gb")
    name = scene.node.cluster.node

    def tenant(label: str, count: int) -> dict[str, str]:
        """Start a pod with a share under a label; return what its container is told."""
        scene.node.cluster.kubectl("label", "--overwrite", "node", name, f"{LABEL}={label}")
        shares.wait(count)
        pod = scene.pod(label, limits={GPU: 1})
        scene.running(pod)
        assert len(scene.gpus(pod)) == 1
        assert f"1 of {count} shares" in shares.status()
        env = environment(scene, pod)
        scene.delete(pod)
        return env

    try:
        assert PIPE not in tenant("tesla-t4", 3)
        assert tenant("a100-40gb", 6)[THREADS] == "16"
        scene.node.cluster.kubectl("label", "--overwrite", "node", name, f"{LABEL}=none-such")
        wait_until(lambda: "none-such" in shares.status(), "status to name the label", timeout=120)
        assert tenant("none-such", 6)[THREADS] == "16"
    finally:
        scene.node.cluster.kubectl("label", "node", name, f"{LABEL}-")
    shares.wait(0)


def test_gpus_that_a_device_plugin_advertises_are_not_offered_beside_it(
    shares: Shares, scene: Scene
) -> None:
    shares.set(config("timeSlicing", 4), 4)
    pod = scene.pod("stays", limits={GPU: 1})
    scene.running(pod)
    try:
        advertise(scene, "2")  # as a device plugin does that comes to the node
        wait_until(lambda: not scene.node.devices(), "the GPUs to be withheld", timeout=120)
        (line,) = scene.node.driver.events("gpu withheld")[-1:]
        assert "would be given out twice" in line["reason"]
        scene.running(pod)
    finally:
        advertise(scene, "0")
    shares.wait(4)
    other = scene.pod("other", limits={GPU: 1})
    scene.running(other)
    assert scene.gpus(other) == scene.gpus(pod)


def advertise(scene: Scene, count: str) -> None:
    """Have the node advertise GPUs outside of DRA."""
    resources = {"capacity": {GPU: count}, "allocatable": {GPU: count}}
    patch = json.dumps({"status": resources})
    words = ("patch", "node", scene.node.cluster.node, "--subresource=status", "--type=merge")
    scene.node.cluster.kubectl(*words, "-p", patch)
