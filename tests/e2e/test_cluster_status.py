"""`dra-driver status --cluster` says what pods of a real scheduler have and could get."""

import json
import os

import pytest
from testbed.commands import run
from testbed.machine import DRIVER

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.kubernetes import needs
from e2e.scene import NAMESPACE, Scene

pytestmark = [pytest.mark.e2e, needs(Feature.COUNTERS, Feature.EXTENDED_RESOURCE)]

GPU, SMALL, HALF = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
GPUS, SMALL_OF_A_GPU, HALVES_OF_A_GPU = 8, 7, 2


def shown(scene: Scene, output: str) -> str:
    """What the command prints, as an admin with a kubeconfig runs it."""
    kubeconfig = scene.node.cluster.env["KUBECONFIG"]
    return run((DRIVER, "status", "--cluster", "--kubeconfig", kubeconfig, "--output", output))


def numbers(scene: Scene) -> dict[str, tuple[int, int, int]]:
    """Offered, used and free of the node, by resource name."""
    (node,) = json.loads(shown(scene, "json"))["nodes"]
    assert node["name"] == scene.node.cluster.node
    assert node["problem"] is None
    assert node["notPublished"] == []
    return {
        resource["name"]: (resource["offered"], resource["used"], resource["free"])
        for resource in node["resources"]
    }


@pytest.mark.driver(MIG="on-demand")
def test_whole_gpus_of_pods_count_as_used_and_leave_no_room_for_partitions(scene: Scene) -> None:
    before = numbers(scene)
    assert before[GPU] == (GPUS, 0, GPUS)
    assert before[SMALL] == (SMALL_OF_A_GPU * GPUS, 0, SMALL_OF_A_GPU * GPUS)

    by_name = scene.pod("by-name", limits={GPU: 1})
    by_claim = scene.pod("by-claim", templates=[scene.template()])
    scene.running(by_name, by_claim)
    now = numbers(scene)
    assert now[GPU] == (GPUS, 2, GPUS - 2)
    assert now[SMALL] == (before[SMALL][0], 0, SMALL_OF_A_GPU * (GPUS - 2))

    words = shown(scene, "wide")
    rows = [line.split() for line in words.splitlines() if f" {NAMESPACE}/" in line]
    assert {row[-1] for row in rows} == {by_name, by_claim}

    scene.delete(by_name, by_claim)
    assert numbers(scene) == before


def test_kubectl_finds_the_commands_as_its_plugin(scene: Scene) -> None:
    cluster = scene.node.cluster
    environment = {**os.environ, **cluster.env, "PATH": f"{DRIVER.parent}:{os.environ['PATH']}"}

    def kubectl(*words: str) -> str:
        return run((cluster.env["KUBECTL"], *words), env=environment)

    assert str(DRIVER.with_name("kubectl-gpu")) in kubectl("plugin", "list")
    (node,) = json.loads(kubectl("gpu", "status", "-o", "json"))["nodes"]
    assert node["name"] == cluster.node
    assert "explain\t" in kubectl("__complete", "gpu", "ex")
