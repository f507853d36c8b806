"""GPUs for virtual machines, with a real scheduler, kubelet and runtime, on a node with some.

No virtual machine runs: the container is what KubeVirt's would be, and what it finds in it is held
against what KubeVirt looks for.
"""

from collections.abc import Iterator

import pytest
from testbed.cluster import Cluster
from testbed.node import GpuNode

import kubevirt
from dra_driver.simulator import profile as profiles
from e2e.conftest import node_of
from e2e.scene import Scene

pytestmark = [pytest.mark.e2e, pytest.mark.stream("two")]

CLASS = "vfio.gpu.nvidia.com"
METADATA = "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/gpus-0/gpu"
CONFIG = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "VfioDeviceConfig",
    "iommu": {"backendPolicy": "LegacyOnly", "enableAPIDevice": True},
}
T4X4 = profiles.load("t4x4")
FOR_MACHINES = [gpu.pci for gpu in T4X4.gpus[:2]]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, lasting: Cluster) -> Iterator[GpuNode]:
    """Four T4, each in an IOMMU group of its own, of which two are bound to vfio-pci at boot."""
    folder = tmp_path_factory.mktemp("machines")
    profile = folder / "t4-vfio.yaml"
    iommu = {"drivers": dict.fromkeys(FOR_MACHINES, "vfio-pci")}
    profile.write_text(profiles.dump(profiles.changed(T4X4, {"iommu": iommu})))
    with node_of(str(profile), folder / "node", lasting, VFIO="true") as node:
        yield node


def template(scene: Scene) -> str:
    """A template of claims for one GPU for a virtual machine."""
    opaque = {"driver": "gpu.nvidia.com", "parameters": CONFIG}
    request = {"name": "gpu", "exactly": {"deviceClassName": CLASS}}
    devices = {"requests": [request], "config": [{"requests": ["gpu"], "opaque": opaque}]}
    return scene.make("ResourceClaimTemplate", "machine", {"spec": {"spec": {"devices": devices}}})


def group(scene: Scene, address: str) -> str:
    """The number of a GPU's IOMMU group."""
    card = scene.node.machine.root / "sys/bus/pci/devices" / address
    return (card / "iommu_group").readlink().name


def test_a_virtual_machine_finds_its_gpu_where_kubevirt_looks(scene: Scene) -> None:
    pod = scene.pod("machine", templates=[template(scene)])
    scene.running(pod)
    names = scene.run_in(pod, "ls", METADATA).split()
    files = {name: scene.run_in(pod, "cat", f"{METADATA}/{name}") for name in names}
    address = kubevirt.pci_address(files, "gpu")
    assert address in FOR_MACHINES
    found = scene.run_in(pod, "sh", "-c", "cd /dev && find vfio -type c && ls nvidia* || true")
    assert sorted(found.split()) == sorted([f"vfio/{group(scene, address)}", "vfio/vfio"])
    scene.node.restart_driver(scene.node.driver_settings)
    scene.delete(pod)


def test_a_claim_without_a_config_gets_the_group_alone(scene: Scene) -> None:
    """As NVIDIA's demo of passthrough asks for it."""
    pod = scene.pod("plain", templates=[scene.template("plain", deviceClassName=CLASS)])
    scene.running(pod)
    (found,) = scene.run_in(pod, "ls", "/dev/vfio").split()
    assert found in [group(scene, address) for address in FOR_MACHINES]
    scene.delete(pod)


def test_machines_and_containers_each_get_their_own_gpus_and_wait_for_no_others(
    scene: Scene,
) -> None:
    of_machines, of_gpus = template(scene), scene.template("whole")
    machines = [scene.pod(f"machine-{number}", templates=[of_machines]) for number in range(2)]
    wholes = [scene.pod(f"whole-{number}", templates=[of_gpus]) for number in range(2)]
    scene.running(*machines, *wholes)
    assert len({uuid for pod in wholes for uuid in scene.gpus(pod)}) == 2
    groups = {scene.run_in(pod, "sh", "-c", "ls /dev/vfio | grep -v vfio") for pod in machines}
    assert len(groups) == 2
    late, lone = (
        scene.pod("machine-late", templates=[of_machines]),
        scene.pod("whole-late", templates=[of_gpus]),
    )
    scene.unschedulable(late)
    scene.unschedulable(lone)
    scene.delete(machines[0])
    scene.running(late)
    scene.delete(late, lone, *machines[1:], *wholes)
