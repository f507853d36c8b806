"""Pods with GPUs on a node that runs CRI-O, whatever runtime all other tests run on.

E2E_RUNTIME=crio has the others run on it, too.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from testbed.claims import mig_profile
from testbed.node import GpuNode
from testbed.pods import migs_seen

from cluster import cgroups, mounts
from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.conftest import node_of
from e2e.kubernetes import makes_mig_by_default, needs
from e2e.scene import NAMESPACE, Scene
from e2e.sharing import PERCENTAGE, PIPE, Shared, mps_limits

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.own_cluster,
    needs(Feature.COUNTERS),
    makes_mig_by_default(),
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuNode]:
    with node_of("h100x8-mig", tmp_path_factory.mktemp("node"), runtime="crio") as node:
        yield node
        env = node.cluster.env
    assert not Path(env["CLUSTER_STATE"]).exists()
    assert mounts.mounted(Path(env["CLUSTER_STATE"])) == []
    assert cgroups.folders(env["CLUSTER_CGROUP"]) == []


def test_pods_have_a_whole_gpu_a_mig_device_and_mps(scene: Scene) -> None:
    info = scene.api.get("Node", scene.node.cluster.node)["status"]["nodeInfo"]
    assert info["containerRuntimeVersion"].startswith("cri-o://1.")
    whole = scene.pod("whole", templates=[scene.template("whole")])
    of_profile = scene.template(
        "mig", deviceClassName="mig.nvidia.com", selectors=mig_profile("1g.10gb")
    )
    part = scene.pod("mig", templates=[of_profile])
    shared = Shared.make(scene, gpu=mps_limits())
    client = shared.pod()
    scene.running(whole, part, client, timeout=180)
    (gpu,) = scene.gpus(whole)
    assert list(migs_seen(scene.node.cluster, part, "ctr", NAMESPACE).values()) == ["1g.10gb"]
    assert shared.gpu(client, "ctr") != gpu
    assert PIPE in shared.env(client)
    assert shared.ask(PERCENTAGE) == "50.0"


def test_gpus_stay_with_pods_whose_runtime_is_killed_and_whose_driver_is_gone(scene: Scene) -> None:
    pod = scene.pod(templates=[scene.template()])
    scene.running(pod)
    before = scene.gpus(pod), scene.container_ids(pod)
    cluster, driver = scene.node.cluster, scene.node.driver
    driver.stop()
    cluster.stop("crio", signal="KILL")
    cluster.start("crio")
    assert (scene.gpus(pod), scene.container_ids(pod)) == before
    driver.start()
    scene.delete(pod)
