"""Shares of eight GPUs on a real cluster: where they land, how they combine, and what they outlast.

One node with eight simulated H100s, on a cluster of its own beside the one of the other tests.
"""

import json
from collections.abc import Iterator

import pytest
from testbed import mps
from testbed.api import Object
from testbed.cluster import Cluster
from testbed.driver import DRIVER_NAME
from testbed.manifests import CLASSES

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.kubernetes import needs
from e2e.scene import Scene, claim_spec
from e2e.shares import (
    GPU,
    LIMIT,
    SHARED,
    THREADS,
    Shares,
    config,
    environment,
    shares_of,
    unshared_scene,
)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.stream("two"),
    needs(Feature.COUNTERS, Feature.EXTENDED_RESOURCE),
]

GPUS = 8
CLASS_OF_SHARED = "gpu.shared.resource.nvidia.com"


@pytest.fixture(scope="module")
def shares(lasting: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shares]:
    with shares_of("h100x8", tmp_path_factory.mktemp("eight"), lasting) as found:
        yield found


@pytest.fixture
def scene(shares: Shares, request: pytest.FixtureRequest) -> Iterator[Scene]:
    yield from unshared_scene(shares, request)


def test_shares_of_two_gpus_in_one_request_are_refused_under_mps_and_hold_none(
    mps_shares: Shares, scene: Scene
) -> None:
    two = {"devices": 2, "renameByDefault": True, "failRequestsGreaterThanOne": False}
    mps_shares.set(config("mps", 4, **two), 8)
    assert "which belong on nodes with one divided device" in mps_shares.status()
    scattered = scene.pod("scattered", limits={SHARED: 5})
    message = scene.warning(scattered, "FailedScheduling")
    assert "would get shares of several devices, and under MPS they have to be of one" in message
    assert "constraints: [{matchAttribute: gpu.nvidia.com/uuid}]" in message
    large, small = (scene.pod(f"of-{count}", limits={SHARED: count}) for count in (3, 4))
    scene.running(large)
    # What the scheduler would take first is one share of the first GPU: only a claim can say more.
    assert "several devices" in scene.warning(small, "FailedScheduling")
    constraint = {"requests": ["gpu"], "matchAttribute": f"{DRIVER_NAME}/uuid"}
    spec = claim_spec(deviceClassName=CLASS_OF_SHARED, allocationMode="ExactCount", count=4)
    spec["devices"]["constraints"] = [constraint]
    claim = scene.make("ResourceClaim", "of-one", {"spec": spec})
    third = scene.pod("of-one", claims=[claim])
    scene.running(third)
    ((first,), (second,)) = scene.gpus(large), scene.gpus(third)
    assert first != second
    share = mps_shares.memory_mib()
    for pod, gpu, count in ((large, first, 3), (third, second, 4)):
        env = environment(scene, pod)
        assert env.get(THREADS, "100") == str(25 * count)
        assert env[LIMIT] == f"{gpu}={share * count}M"
    assert len(set(mps.processes(scene.node.place.plugins).values())) == 2
    # The six other GPUs are not divided, and whole as before.
    whole = scene.pod("whole", claims=[scene.claim("whole", count=GPUS - 2)])
    scene.running(whole)
    assert not {first, second} & set(scene.gpus(whole))


@pytest.mark.driver(WHOLE_GPUS_BESIDE_SHARES="always")
def test_a_claim_of_nvidias_own_class_gets_a_whole_gpu_first_and_then_a_share(
    shares: Shares, scene: Scene
) -> None:
    kubectl = scene.node.cluster.kubectl
    kubectl("apply", "-f", "-", stdin=json.dumps(nvidias_class()))
    # Of two classes with one resource name the newer counts: ours, if it came with this driver.
    kubectl("delete", "deviceclass", "gpu.resource.nvidia.com")
    kubectl("apply", "-f", CLASSES / "extended-resources.yaml")
    try:
        shares.set(config("timeSlicing", 2), 2 * GPUS)
        wholes = scene.pod("wholes", claims=[scene.claim("wholes", count=GPUS - 1)])
        scene.running(wholes)
        assert len(scene.gpus(wholes)) == GPUS - 1
        tenant = scene.pod("tenant", limits={GPU: 1})
        scene.running(tenant)
        late = scene.pod("late", claims=[scene.claim("late")])
        scene.running(late)
        assert scene.gpus(late) == scene.gpus(tenant)
    finally:
        kubectl("delete", "deviceclass", DRIVER_NAME)
        kubectl("apply", "-k", CLASSES)
        # The scheduler forgets a resource name with either of its classes, until the other changes.
        words = ("annotate", "--overwrite", "deviceclass", "gpu.resource.nvidia.com")
        kubectl(*words, f"after={scene.name('nvidias-class')}")


def nvidias_class() -> Object:
    """The class of NVIDIA's driver for whole GPUs, which says nothing of shares."""
    expression = (
        f"device.driver == '{DRIVER_NAME}' && device.attributes['{DRIVER_NAME}'].type == 'gpu'"
    )
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": DRIVER_NAME},
        "spec": {"extendedResourceName": GPU, "selectors": [{"cel": {"expression": expression}}]},
    }
