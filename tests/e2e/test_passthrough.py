"""GPUs for virtual machines, with a real scheduler, kubelet and runtime, and a kernel that acts.

No virtual machine runs: the container is what KubeVirt's would be, and what it finds in it is held
against what KubeVirt looks for.
"""

from collections.abc import Iterator

import pytest
from testbed.cluster import Cluster
from testbed.commands import wait_until
from testbed.node import GpuNode

import kubevirt
from dra_driver.admin.doctor.facts.cluster_facts import Feature
from dra_driver.simulator import profile as profiles
from e2e.conftest import node_of
from e2e.kubernetes import needs
from e2e.scene import Scene

pytestmark = [pytest.mark.e2e, pytest.mark.stream("two"), needs(Feature.COUNTERS)]

CLASS = "vfio.gpu.nvidia.com"
METADATA = "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/gpus-0/gpu"
CONFIG = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "VfioDeviceConfig",
    "iommu": {"backendPolicy": "LegacyOnly", "enableAPIDevice": True},
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, lasting: Cluster) -> Iterator[GpuNode]:
    """Four T4, each in an IOMMU group of its own, offered to virtual machines as well."""
    profile = tmp_path_factory.mktemp("profile") / "t4-vfio.yaml"
    with_iommu = profiles.changed(profiles.load("t4x4"), {"iommu": True})
    profile.write_text(profiles.dump(with_iommu))
    folder = tmp_path_factory.mktemp("machines")
    with node_of(str(profile), folder, lasting, VFIO="true") as node:
        yield node


def template(scene: Scene) -> str:
    """A template of claims for one GPU for a virtual machine."""
    opaque = {"driver": "gpu.nvidia.com", "parameters": CONFIG}
    request = {"name": "gpu", "exactly": {"deviceClassName": CLASS}}
    devices = {"requests": [request], "config": [{"requests": ["gpu"], "opaque": opaque}]}
    return scene.make("ResourceClaimTemplate", "machine", {"spec": {"spec": {"devices": devices}}})


def given(scene: Scene) -> list[str]:
    """The addresses of the GPUs that are bound to vfio-pci."""
    bound = scene.node.machine.root / "sys/bus/pci/drivers/vfio-pci"
    return sorted(path.name for path in bound.iterdir() if path.name.startswith("0000:"))


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
    assert given(scene) == [address]
    found = scene.run_in(pod, "sh", "-c", "cd /dev && find vfio -type c && ls nvidia* || true")
    assert sorted(found.split()) == sorted([f"vfio/{group(scene, address)}", "vfio/vfio"])
    scene.node.restart_driver(scene.node.driver_settings)
    scene.delete(pod)
    wait_until(lambda: not given(scene), "the GPU to be back with its driver", timeout=60)
    scene.rewritten(by_name=False)  # the first that comes back gets the first number


def test_a_claim_without_a_config_gets_the_group_alone(scene: Scene) -> None:
    """As NVIDIA's demo of passthrough asks for it."""
    pod = scene.pod("plain", templates=[scene.template("plain", deviceClassName=CLASS)])
    scene.running(pod)
    (address,) = given(scene)
    assert scene.run_in(pod, "ls", "/dev/vfio").split() == [group(scene, address)]
    scene.delete(pod)
    wait_until(lambda: not given(scene), "the GPU to be back with its driver", timeout=60)
    scene.rewritten(by_name=False)


def test_the_scheduler_gives_out_a_gpu_or_its_passthrough_and_never_both(scene: Scene) -> None:
    """NVIDIA's driver publishes both without a counter between them (its issue 1076)."""
    of_machines, of_gpus = template(scene), scene.template("whole")
    machines = [scene.pod(f"machine-{number}", templates=[of_machines]) for number in range(4)]
    scene.running(*machines)
    assert len(given(scene)) == 4
    whole = scene.pod("whole", templates=[of_gpus])
    scene.unschedulable(whole)
    scene.delete(machines[0])
    scene.running(whole)
    assert len(scene.gpus(whole)) == 1
    late = scene.pod("machine-late", templates=[of_machines])
    scene.unschedulable(late)
    assert len(given(scene)) == 3
    scene.delete(whole)
    scene.running(late)
    scene.delete(late, *machines[1:])
    wait_until(lambda: not given(scene), "all GPUs to be back with their driver", timeout=60)
    scene.rewritten(by_name=False)  # the first that comes back gets the first number
