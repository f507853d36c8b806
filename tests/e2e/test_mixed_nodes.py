"""A node of different cards: which of them a pod gets that names none, and cards that are left out.

One node with an A100, a T4, an L4 and a P4, on a cluster of its own, and the real scheduler.
"""

from collections.abc import Iterator

import pytest
from testbed.api import Object
from testbed.cluster import Cluster
from testbed.commands import wait_until
from testbed.driver import DRIVER_NAME
from testbed.node import GpuNode

from e2e.conftest import node_of, set_driver
from e2e.scene import Scene, cel
from e2e.sharing import Shared, mps_limits, time_slicing

pytestmark = [pytest.mark.e2e, pytest.mark.stream("two")]

P4, T4, L4, A100 = "Tesla P4", "Tesla T4", "NVIDIA L4", "NVIDIA A100-SXM4-40GB"


@pytest.fixture(scope="module")
def node(lasting: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuNode]:
    with node_of("mixed", tmp_path_factory.mktemp("mixed"), lasting) as node:
        yield node


def cards(scene: Scene) -> dict[str, str]:
    """The product of each whole GPU that is published, by its UUID."""
    return {
        device["attributes"]["uuid"]["string"]: device["attributes"]["productName"]["string"]
        for one in scene.node.slices()
        for device in one.get("devices", ())
        if device["attributes"]["type"]["string"] == "gpu"
    }


def card_of(scene: Scene, pod: str) -> str:
    scene.running(pod)
    (uuid,) = scene.gpus(pod)
    return cards(scene)[uuid]


def named(product: str) -> list[Object]:
    return cel(f'device.attributes["{DRIVER_NAME}"].productName == "{product}"')


def wait_cards(scene: Scene, *products: str) -> None:
    wait_until(
        lambda: sorted(cards(scene).values()) == sorted(products), f"{products}", timeout=120
    )


def test_pods_that_name_no_card_leave_the_better_ones_to_those_that_do(scene: Scene) -> None:
    plain = scene.template()
    first, second = (scene.pod(f"plain-{number}", templates=[plain]) for number in (1, 2))
    assert {card_of(scene, pod) for pod in (first, second)} == {P4, T4}
    wants = scene.template("wants", selectors=named(A100))
    assert card_of(scene, scene.pod("wants", templates=[wants])) == A100
    assert card_of(scene, scene.pod("plain-3", templates=[plain])) == L4


CAN = f"device.attributes['{DRIVER_NAME}'].cudaComputeCapability.compareTo(semver('7.0.0')) >= 0"


@pytest.mark.parametrize("config", [time_slicing("Long"), mps_limits(memory="1Gi")])
def test_a_config_that_some_cards_cannot_follow_needs_a_selector_which_the_refusal_names(
    scene: Scene, config: Object
) -> None:
    """The least capable card comes first, whatever a config wants of it."""
    refused = Shared.make(scene, "refused", gpu=config)
    pod = refused.pod("refused")
    said = scene.warning(pod, "FailedPrepareDynamicResources")
    assert P4 in said
    assert CAN in said
    shared = Shared.make(scene, "shared", selectors=cel(CAN), gpu=config)
    assert card_of(scene, shared.pod()) == T4


def test_an_excluded_card_gets_no_pod_and_stays_untouched(scene: Scene) -> None:
    settings = scene.node.machine.settings()
    set_driver(scene.node, {"EXCLUDE_GPUS": "e3:00"})
    wait_cards(scene, T4, L4, A100)
    wants = scene.template("wants", selectors=named(P4))
    waiting = scene.pod("waiting", templates=[wants])
    assert "cannot allocate all claims" in scene.unschedulable(waiting)
    assert card_of(scene, scene.pod("plain", templates=[scene.template()])) == T4
    assert scene.node.machine.settings() == settings
    set_driver(scene.node, {})
    scene.running(waiting)
    scene.rewritten()
