"""A GPU with the NIC beside it: this driver's claims joined with another driver's."""

from collections.abc import Iterator, Sequence

import pytest
from testbed.nics import NIC_DRIVER, gpus_beside_nics, made_up_nics

from e2e.scene import NAMESPACE, Scene

pytestmark = pytest.mark.e2e

NIC_CLASS = "e2e-nic"


@pytest.fixture
def roots(scene: Scene) -> Iterator[Sequence[str]]:
    """Two NICs on the node, below the roots of GPUs that do not come first."""
    selector = {"cel": {"expression": f"device.driver == '{NIC_DRIVER}'"}}
    scene.api.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": NIC_CLASS},
            "spec": {"selectors": [selector]},
        }
    )
    try:
        with made_up_nics(scene.node, 2) as roots:
            yield roots
            scene.clear()
    finally:
        scene.api.delete("DeviceClass", NIC_CLASS)


def gpu_with_nic(scene: Scene) -> str:
    classes = {"gpu": "gpu.nvidia.com", "nic": NIC_CLASS}
    requests = [
        {"name": name, "exactly": {"deviceClassName": one}} for name, one in classes.items()
    ]
    joined = {"requests": [*classes], "matchAttribute": "resource.kubernetes.io/pcieRoot"}
    spec = {"devices": {"requests": requests, "constraints": [joined]}}
    return scene.make("ResourceClaimTemplate", "gpu-with-nic", {"spec": {"spec": spec}})


def test_pods_get_the_gpus_beside_the_nics_and_a_third_waits(
    scene: Scene, roots: Sequence[str]
) -> None:
    beside = gpus_beside_nics(scene.node)
    assert len(roots) == len(beside) == 2
    # Without a NIC the scheduler takes the first GPU, and that is beside none.
    alone = scene.pod("alone", templates=[scene.template("alone")])
    scene.running(alone)
    assert not set(scene.gpus(alone)) & beside
    template = gpu_with_nic(scene)
    pods = [scene.pod(f"worker-{number}", templates=[template]) for number in range(2)]
    scene.running(*pods, timeout=120)
    assert {uuid for pod in pods for uuid in scene.gpus(pod)} == beside
    for claim in scene.api.all("ResourceClaim", NAMESPACE):
        results = claim["status"]["allocation"]["devices"]["results"]
        assert len(results) == 1 or {result["request"] for result in results} == {"gpu", "nic"}
    third = scene.pod("worker-2", templates=[template])
    assert "cannot allocate all claims" in scene.unschedulable(third)
    scene.delete(pods[0])
    scene.running(third, timeout=120)
    assert set(scene.gpus(third)) <= beside
