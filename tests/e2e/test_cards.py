"""Nodes of other cards, each on a cluster of its own: they publish and run what they can."""

from collections.abc import Iterator

import pytest
from testbed.api import Object
from testbed.driver import DRIVER_NAME
from testbed.node import GpuNode
from testbed.pods import migs_seen, parse_gpu_list

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.conftest import node_of
from e2e.explaining import explain
from e2e.kubernetes import needs
from e2e.scene import NAMESPACE, Scene, cel
from e2e.sharing import PERCENTAGE, Shared, mps_limits, time_slicing

pytestmark = [pytest.mark.e2e, pytest.mark.own_cluster]

MIG_CLASS = "mig.nvidia.com"
GPU = "nvidia.com/gpu"
FAILED = "FailedPrepareDynamicResources"


@pytest.fixture(scope="module")
def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GpuNode]:
    """A node of the cards that the test names, beside the one of all other tests."""
    profile: str = request.param
    with node_of(profile, tmp_path_factory.mktemp(profile)) as node:
        yield node


def cards(profile: str) -> pytest.MarkDecorator:
    """Run a test on a node of a profile."""
    return pytest.mark.parametrize("node", [profile], indirect=True, scope="module")


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


# A card of every generation

GENERATIONS = {
    "Pascal": "Tesla P100-PCIE-16GB",
    "Volta": "Tesla V100-PCIE-16GB",
    "Turing": "Tesla T4",
    "Ampere": "NVIDIA A30",
    "Ada Lovelace": "NVIDIA L4",
    "Hopper": "NVIDIA H100 80GB HBM3",
}


@pytest.mark.driver(MIG="on-demand")
@cards("generations")
@needs(Feature.COUNTERS)
def test_every_generation_is_published_with_what_it_can_do(scene: Scene) -> None:
    found = published(scene)
    assert set(GENERATIONS.values()) < set(found)
    divided = {product for product, kinds in found.items() if "mig" in kinds}
    assert divided == {GENERATIONS["Hopper"]}


@cards("generations")
def test_a_pod_gets_a_card_of_each_generation(scene: Scene) -> None:
    pods = {
        product: scene.pod(
            architecture.split()[0].lower(),
            templates=[
                scene.template(
                    architecture.split()[0].lower(),
                    selectors=cel(
                        f'device.attributes["{DRIVER_NAME}"].architecture == "{architecture}" &&'
                        f' device.attributes["{DRIVER_NAME}"].type == "gpu"'
                    ),
                )
            ],
        )
        for architecture, product in GENERATIONS.items()
    }
    scene.running(*pods.values(), timeout=120)
    for product, pod in pods.items():
        said = scene.run_in(pod, "nvidia-smi", "-L")
        assert len(parse_gpu_list(said)) == 1
        # A node has two V100; both are of the generation.
        assert product.removesuffix("-16GB") in said


@pytest.mark.driver(MIG="on-demand")
@cards("generations")
@needs(Feature.COUNTERS)
def test_a_mig_device_is_made_on_the_card_that_can(scene: Scene) -> None:
    selectors = cel(f'device.attributes["{DRIVER_NAME}"].profile == "1g.10gb"')
    pod = scene.pod(templates=[scene.template(deviceClassName=MIG_CLASS, selectors=selectors)])
    scene.running(pod)
    assert list(migs_seen(scene.node.cluster, pod, "ctr", NAMESPACE).values()) == ["1g.10gb"]
    assert GENERATIONS["Hopper"] in scene.run_in(pod, "nvidia-smi", "-L")


@cards("generations")
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


# Cards without MIG

T4 = "Tesla T4"


@pytest.mark.long(
    "tests/contract/explain/test_causes.py::test_gpus_without_mig_are_not_told_to_turn_it_on"
)
@cards("t4x4")
def test_who_asks_four_t4_for_mig_is_not_told_to_turn_it_on(scene: Scene) -> None:
    assert published(scene) == {T4: ["gpu"] * 4}
    pod = scene.pod(templates=[scene.template(deviceClassName=MIG_CLASS)])
    scene.unschedulable(pod)
    said, _ = explain(scene, pod)
    assert "none of these GPUs has MIG (architecture Turing)" in said
    assert "nvidia-smi" not in said
    assert "on-demand" not in said


# Eight alike

V100 = "Tesla V100-SXM2-32GB"


@pytest.mark.long("tests/e2e/test_cards.py::test_a_pod_gets_a_card_of_each_generation")
@cards("v100x8")
@needs(Feature.EXTENDED_RESOURCE)
def test_eight_v100_have_time_slices_limits_and_one_more_pod_waits(scene: Scene) -> None:
    assert published(scene) == {V100: ["gpu"] * 8}
    slow = Shared.make(scene, "slow", gpu=time_slicing("Long"))
    sliced = slow.pod("sliced")
    scene.running(sliced)
    assert slow.settings(slow.gpu(sliced)).time_slice == "Long"
    limited = Shared.make(scene, "limited", gpu=mps_limits(20, "2Gi"))
    if scene.node.can_run_mps:
        pod = limited.pod("limited")
        scene.running(pod)
        assert limited.ask(PERCENTAGE) == "20.0"
        scene.delete(pod)
    six, two = (scene.pod(f"with-{count}", limits={GPU: count}) for count in (6, 2))
    scene.running(six)
    scene.unschedulable(two)
    said, _ = explain(scene, two)
    assert f"asks for {2} devices" in said
    scene.delete(sliced)
    scene.api.delete("ResourceClaim", slow.claim, NAMESPACE)
    scene.running(two)
    assert len({*scene.gpus(six), *scene.gpus(two)}) == 8


# A laptop

MX150 = "NVIDIA GeForce MX150"


@pytest.mark.long(
    "tests/e2e/test_mixed_nodes.py::test_a_config_that_some_cards_cannot_follow_needs"
    "_a_selector_which_the_refusal_names"
)
@cards("laptop")
def test_what_a_laptops_gpu_cannot_do_is_refused_with_what_to_select_by(scene: Scene) -> None:
    scene.node.driver.wait_registered()  # else the first refusal may be the kubelet's own
    shared = Shared.make(scene, gpu=mps_limits())
    pod = shared.pod()
    assert "cudaComputeCapability" in scene.warning(pod, FAILED, timeout=90)
    said, _ = explain(scene, pod, status=3)
    assert "cudaComputeCapability" in said


@pytest.mark.long("tests/e2e/test_cards.py::test_a_pod_gets_a_card_of_each_generation")
@cards("laptop")
@needs(Feature.EXTENDED_RESOURCE)
def test_a_laptops_gpu_is_given_out_beside_its_display_server(scene: Scene) -> None:
    assert published(scene) == {MX150: ["gpu"]}
    pod = scene.pod(limits={"nvidia.com/gpu": 1})
    scene.running(pod)
    assert len(scene.gpus(pod)) == 1
    late = scene.pod("late", limits={"nvidia.com/gpu": 1})
    scene.unschedulable(late)
