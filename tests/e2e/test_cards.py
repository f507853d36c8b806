"""Nodes of other cards, each on a cluster of its own: they publish and run what they can."""

from collections.abc import Iterator

import pytest
from testbed.api import Object
from testbed.claims import gpu_config
from testbed.driver import DRIVER_NAME
from testbed.machine import GpuSettings
from testbed.node import GpuNode
from testbed.pods import migs_seen, parse_gpu_list

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.conftest import node_of
from e2e.kubernetes import needs
from e2e.scene import NAMESPACE, Scene, cel
from e2e.sharing import (
    MEMORY,
    PERCENTAGE,
    UNDER_MPS,
    USUAL,
    Shared,
    mps_limits,
    time_slicing,
)

pytestmark = [pytest.mark.e2e, pytest.mark.own_cluster]

MIG_CLASS = "mig.nvidia.com"
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


# A node of eight V100

V100 = "Tesla V100-SXM2-32GB"


@pytest.mark.long("tests/e2e/test_cards.py::test_a_pod_gets_a_card_of_each_generation")
@cards("v100x8")
def test_eight_v100_are_published_and_given_out(scene: Scene) -> None:
    assert published(scene) == {V100: ["gpu"] * 8}
    template = scene.template()
    pods = [scene.pod(f"pod{number}", templates=[template]) for number in range(8)]
    scene.running(*pods, timeout=120)
    assert len({uuid for pod in pods for uuid in scene.gpus(pod)}) == 8


@pytest.mark.long("tests/e2e/test_cards.py::test_every_generation_is_published_with_what_it_can_do")
@cards("v100x8")
def test_no_v100_is_divided(scene: Scene) -> None:
    pod = scene.pod(templates=[scene.template(deviceClassName=MIG_CLASS)])
    assert "cannot allocate all claims" in scene.unschedulable(pod)
    assert "MIG" not in scene.node.driver.tail(200)


@pytest.mark.long("tests/contract/sharing/test_time_slicing.py::test_an_interval_is_set_and_reset")
@cards("v100x8")
def test_a_v100_is_time_sliced(scene: Scene) -> None:
    shared = Shared.make(scene, gpu=time_slicing("Long"))
    pod = shared.pod(one="gpu", other="gpu")
    scene.running(pod)
    gpu = shared.gpu(pod, "one")
    assert shared.settings(gpu) == GpuSettings(
        compute_mode="Default", time_slice="Long", mig_mode="-"
    )
    scene.delete(pod)
    assert shared.settings(gpu).time_slice == "Default"


@pytest.mark.long("tests/e2e/test_cards.py::test_pascal_is_refused_limits_and_volta_is_not")
@cards("v100x8")
@pytest.mark.usefixtures("mps_node")
def test_a_v100_has_mps_with_limits(scene: Scene) -> None:
    shared = Shared.make(scene, gpu=mps_limits(50, "10Gi"))
    pod = shared.pod(one="gpu", other="gpu")
    scene.running(pod, timeout=120)
    assert (shared.ask(PERCENTAGE), shared.ask(f"{MEMORY} 0")) == ("50.0", "10G")
    scene.delete(pod)


# An Ampere node, nothing of which is divided while MIG mode is off; test_a100.py has it on

A100 = "NVIDIA A100-SXM4-40GB"


@pytest.mark.long(
    "tests/contract/claims/test_mig.py::test_an_ampere_gpu_with_mig_off_is_not_divided"
)
@cards("a100x8")
def test_eight_a100_are_whole_until_mig_mode_is_on(scene: Scene) -> None:
    assert published(scene) == {A100: ["gpu"] * 8}
    pod = scene.pod(templates=[scene.template(count=8)])
    scene.running(pod)
    assert len(set(scene.gpus(pod))) == 8


@pytest.mark.long("tests/contract/sharing/test_time_slicing.py::test_an_interval_is_set_and_reset")
@cards("a100x8")
def test_an_a100_is_time_sliced(scene: Scene) -> None:
    shared = Shared.make(scene, gpu=time_slicing("Short"))
    pod = shared.pod()
    scene.running(pod)
    gpu = shared.gpu(pod)
    assert shared.settings(gpu).time_slice == "Short"
    scene.delete(pod)
    assert shared.settings(gpu) == USUAL


@pytest.mark.long(
    "tests/contract/sharing/test_mps.py"
    "::test_a_claim_is_served_by_a_daemon_with_its_limits_until_it_goes"
)
@cards("a100x8")
@pytest.mark.usefixtures("mps_node")
def test_an_a100_has_mps_with_limits(scene: Scene) -> None:
    shared = Shared.make(scene, gpu=mps_limits(30, "4Gi"))
    pod = shared.pod()
    scene.running(pod, timeout=120)
    assert (shared.ask(PERCENTAGE), shared.ask(f"{MEMORY} 0")) == ("30.0", "4G")
    assert shared.settings(shared.gpu(pod)) == UNDER_MPS
    scene.delete(pod)


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


# A laptop

MX150 = "NVIDIA GeForce MX150"


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


@pytest.mark.long(
    "tests/contract/sharing/test_time_slicing.py"
    "::test_a_card_without_time_slices_is_refused_before_anything_is_changed"
)
@cards("laptop")
@pytest.mark.parametrize(
    ("config", "words"),
    [
        (time_slicing("Long"), "Not Supported; use interval Default, or select another GPU"),
        (mps_limits(), "defaultActiveThreadPercentage was requested but is not supported"),
        (
            gpu_config(strategy="MPS", mpsConfig={"multiUser": True}),
            "multiuser mode was requested but is not supported",
        ),
    ],
    ids=["time-slice", "limits", "multiuser"],
)
def test_a_laptops_gpu_is_refused_what_it_cannot_do(
    scene: Scene, config: Object, words: str
) -> None:
    assert words in refused(scene, config, MX150)


@pytest.mark.long(
    "tests/contract/sharing/test_time_slicing.py"
    "::test_a_card_without_time_slices_has_the_default_one"
)
@cards("laptop")
def test_a_laptops_gpu_is_shared_by_turns_of_the_default_length(scene: Scene) -> None:
    shared = Shared.make(scene, gpu=time_slicing("Default"))
    pod = shared.pod(one="gpu", other="gpu")
    scene.running(pod)
    assert shared.gpu(pod, "one") == shared.gpu(pod, "other")
    scene.delete(pod)
