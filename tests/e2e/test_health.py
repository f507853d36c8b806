"""GPUs that become sick under pods: new pods go elsewhere, and come back once the GPU is well."""

from collections.abc import Iterator

import pytest
from testbed.commands import wait_until

from e2e.scene import NAMESPACE, Scene
from e2e.sickness import GPU, forget, tainted_soon, taints, wanting_it

pytestmark = [pytest.mark.e2e, pytest.mark.feature("DRADeviceTaints")]


@pytest.fixture(autouse=True)
def machine_as_before(scene: Scene) -> Iterator[None]:
    """Mend the machine after a test, whether it went well or not; let the driver forget."""
    settings = scene.node.driver_settings
    yield
    forget(scene, settings)


def test_a_pod_on_a_sick_gpu_continues_and_others_wait(scene: Scene) -> None:
    template = wanting_it(scene)
    there = scene.pod("there", templates=[template])
    scene.running(there)
    containers, gpus = scene.container_ids(there), scene.gpus(there)

    scene.node.machine.xid(GPU, 79)
    tainted_soon(scene)
    assert "XID 79" in scene.warning(there, "GPUNotWell")
    assert scene.container_ids(there) == containers
    assert scene.gpus(there) == gpus
    elsewhere = scene.pod("elsewhere", templates=[scene.template("any")])
    scene.running(elsewhere)
    assert scene.gpus(elsewhere) != gpus
    scene.delete(there)
    waiting = scene.pod("waiting", templates=[template])
    assert "cannot allocate all claims" in scene.unschedulable(waiting)

    scene.node.machine.fault("lose", GPU)
    wait_until(lambda: "gpu.nvidia.com/gpu-lost" in taints(scene), "the loss", timeout=120)
    assert "cannot allocate all claims" in scene.unschedulable(waiting)
    scene.node.machine.fault("restore", GPU)
    scene.running(waiting)
    assert taints(scene) == {}
    assert scene.gpus(waiting) == gpus


@pytest.mark.driver(TAINT_LOSS="NoExecute")
def test_where_no_execute_is_set_the_pod_is_evicted(scene: Scene) -> None:
    scene.node.driver.wait_log("gpu events received", gpus=8)
    there = scene.pod("there", templates=[wanting_it(scene)])
    other = scene.pod("other", templates=[scene.template("any")])
    scene.running(there, other)
    scene.node.machine.xid(GPU, 79)
    wait_until(
        lambda: there not in {one["metadata"]["name"] for one in scene.api.all("Pod", NAMESPACE)},
        "the pod to be evicted",
        timeout=60,
    )
    scene.running(other)
