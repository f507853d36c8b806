"""A node with a card of every generation: each is published and used as far as it can be."""

from collections.abc import Iterator

import pytest
from testbed.api import Object
from testbed.cluster import Cluster
from testbed.driver import DRIVER_NAME
from testbed.node import GpuNode

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.conftest import node_of
from e2e.kubernetes import is_on
from e2e.scene import Scene, cel
from e2e.sharing import PERCENTAGE, Shared, mps_limits

pytestmark = [pytest.mark.e2e, pytest.mark.stream("two")]

FAILED = "FailedPrepareDynamicResources"


@pytest.fixture(scope="module")
def node(lasting: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuNode]:
    settings = {"MIG": "on-demand"} if is_on(Feature.COUNTERS) else {}
    with node_of("generations", tmp_path_factory.mktemp("cards"), lasting, **settings) as node:
        yield node


def published(scene: Scene) -> dict[str, list[str]]:
    """The types of the devices that are published, by the product they are on."""
    found: dict[str, list[str]] = {}
    for one in scene.node.slices():
        for device in one.get("devices", []):
            facts = device["attributes"]
            kinds = found.setdefault(facts["productName"]["string"], [])
            kinds.append(facts["type"]["string"])
    return found


def of_product(product: str) -> list[Object]:
    """The selectors of a request for a card by its name."""
    return cel(f'device.attributes["{DRIVER_NAME}"].productName == "{product}"')


def refused(scene: Scene, config: Object, product: str) -> str:
    """What a pod is told that asks a card for what it cannot do; nothing may be left of it."""
    shared = Shared.make(scene, selectors=of_product(product), gpu=config)
    before = scene.node.machine.settings()
    pod = shared.pod()
    said = scene.warning(pod, FAILED, timeout=90)
    assert scene.node.machine.settings() == before
    scene.delete(pod)
    return said


GENERATIONS = {
    "Pascal": "Tesla P100-PCIE-16GB",
    "Volta": "Tesla V100-PCIE-16GB",
    "Turing": "Tesla T4",
    "Ampere": "NVIDIA A30",
    "Ada Lovelace": "NVIDIA L4",
    "Hopper": "NVIDIA H100 80GB HBM3",
}


def test_pascal_is_refused_limits_and_volta_is_not(scene: Scene) -> None:
    said = refused(scene, mps_limits(), GENERATIONS["Pascal"])
    assert "defaultActiveThreadPercentage was requested but is not supported" in said
    assert 'insufficient cudaComputeCapability "6.0", wanted >= "7.0"' in said
    if not scene.node.can_run_mps:
        return
    selectors = of_product(GENERATIONS["Volta"])
    shared = Shared.make(scene, "volta", selectors=selectors, gpu=mps_limits(20, "2Gi"))
    pod = shared.pod("volta")
    scene.running(pod, timeout=120)
    assert shared.ask(PERCENTAGE) == "20.0"
    scene.delete(pod)
