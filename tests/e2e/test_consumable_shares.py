"""Parts of one GPU by consumable capacity, on a real cluster: what claims ask for and get.

One node with one simulated H100. Claims that name `memory` and `shares` are those of users of
NVIDIA's driver.
"""

from collections.abc import Iterator, Mapping

import pytest
from testbed import mps
from testbed.api import Object
from testbed.claims import gpu_config
from testbed.cluster import Cluster
from testbed.driver import DRIVER_NAME
from testbed.node import GpuNode
from testbed.pods import environment

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.conftest import h100x1, node_of
from e2e.kubernetes import needs
from e2e.scene import NAMESPACE, Scene
from e2e.sharing import PIPE

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.stream("two"),
    needs(Feature.COUNTERS, Feature.CONSUMABLE),
]

THREADS, LIMIT = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
MPS = gpu_config(strategy="MPS")


@pytest.fixture(scope="module")
def node(lasting: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuNode]:
    folder, mode = tmp_path_factory.mktemp("one"), {"CONSUMABLE_SHARES": "unlimited"}
    with node_of(h100x1(folder), folder / "node", lasting, **mode) as node:
        yield node


def tenant(
    scene: Scene,
    name: str,
    asked: Mapping[str, str] | None = None,
    config: Object | None = None,
    **exactly: object,
) -> str:
    """Make a pod with a claim of its own for these capacities; return the pod's name."""
    request: Object = {"deviceClassName": DRIVER_NAME, **exactly}
    if asked:
        request["capacity"] = {"requests": dict(asked)}
    devices: Object = {"requests": [{"name": "gpu", "exactly": request}]}
    if config:
        devices["config"] = [{"opaque": {"driver": DRIVER_NAME, "parameters": config}}]
    claim = scene.make("ResourceClaim", name, {"spec": {"devices": devices}})
    return scene.pod(name, claims=[claim])


def results(scene: Scene, pod: str) -> list[Object]:
    """What the claim of a pod, which has the same name, was allocated."""
    claim = scene.api.get("ResourceClaim", pod, NAMESPACE)
    found: list[Object] = claim["status"]["allocation"]["devices"]["results"]
    return found


@pytest.mark.usefixtures("mps_node")
def test_claims_for_memory_and_for_cores_are_limited_to_them_on_one_gpu(scene: Scene) -> None:
    memory = tenant(scene, "memory", {"memory": "10Gi"}, MPS)
    cores = tenant(scene, "cores", {"cores": "20"}, MPS)
    both = tenant(scene, "both", {"memory": "40Gi", "cores": "80"}, MPS)
    scene.running(memory, cores, both)
    (gpu,) = scene.gpus(memory)
    assert scene.gpus(cores) == scene.gpus(both) == (gpu,)
    found = environment(scene.node.cluster, memory, "ctr", NAMESPACE)
    assert (found[PIPE], found[LIMIT]) == ("/tmp/nvidia-mps", f"{gpu}=10240M")
    assert THREADS not in found
    found = environment(scene.node.cluster, cores, "ctr", NAMESPACE)
    assert found[THREADS] == "20"
    assert LIMIT not in found
    found = environment(scene.node.cluster, both, "ctr", NAMESPACE)
    assert (found[THREADS], found[LIMIT]) == ("80", f"{gpu}=40960M")
    assert len(set(mps.processes(scene.node.place.plugins).values())) == 1
    # All SMs and 50 of some 79 GiB are gone.
    scene.unschedulable(tenant(scene, "compute", {"cores": "1"}, MPS))
    scene.unschedulable(tenant(scene, "large", {"memory": "40Gi"}, MPS))
    small = tenant(scene, "small", {"memory": "20Gi"}, MPS)
    scene.running(small)
    assert (
        len({one["shareID"] for pod in (memory, cores, both) for one in results(scene, pod)}) == 3
    )
