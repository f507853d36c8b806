"""An admin who follows README and the install page: their commands, as they stand there."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from testbed.cluster import Cluster
from testbed.commands import REPOSITORY, wait_until
from testbed.installed_node import LABEL, NAMESPACE, InstalledNode
from testbed.pods import wait_gone

import gathering
from dra_driver.admin.doctor.facts.cluster_facts import Feature
from dra_driver.admin.gather import reading
from e2e.conftest import node_with_image
from e2e.kubernetes import needs
from e2e.scene import Scene
from e2e.shares import config
from e2e.walk import Reader, blocks

pytestmark = [pytest.mark.e2e, pytest.mark.stream("own")]

INSTALL = "docs/install.md"


@pytest.fixture(scope="module")
def node(
    lasting_for_pods: Cluster, tmp_path_factory: pytest.TempPathFactory, image_archive: Path
) -> Iterator[InstalledNode]:
    folder = tmp_path_factory.mktemp("walk")
    with node_with_image(lasting_for_pods, folder, image_archive) as node:
        # A reader makes it, and an earlier test's is still there.
        node.cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout=120)
        yield node


@pytest.fixture
def reader(node: InstalledNode, tmp_path: Path) -> Reader:
    file = tmp_path / "shares.yaml"
    file.write_text(config("timeSlicing", 10))
    words = {"REGISTRY": "docker.io/library", "NODE": node.cluster.node, "FILE": str(file)}
    return Reader(node, tmp_path, words)


@needs(Feature.COUNTERS, Feature.EXTENDED_RESOURCE)
def test_an_admin_installs_shares_and_uninstalls_by_the_pages_commands(
    node: InstalledNode, reader: Reader, tmp_path: Path
) -> None:
    two_commands, namespace = blocks(INSTALL, "With Helm")
    assert two_commands == blocks("README.md", "Install it on a cluster")[1]
    (label,) = blocks(INSTALL, "Which nodes get it")
    (looks,) = blocks(INSTALL, "Check that it works")
    (share,) = blocks(INSTALL, "Sharing GPUs")
    take_away = blocks(INSTALL, "Uninstalling it")[0]

    reader.types(namespace)
    said = reader.types(two_commands)
    assert "NO NODE GETS THE DRIVER" in said, said
    assert label in said
    reader.types(label)
    reader.types(two_commands.splitlines()[-1])
    node.wait_published()
    found = reader.types(looks)
    for word in ("dra-driver-", "0 errors, ", f"gpu.nvidia.com-{node.cluster.node}"):
        assert word in found, found

    archive = gathered_in_the_pod(node, reader, tmp_path)
    assert archive.documents[reading.SLICES]
    assert len(archive.documents[reading.NVML]["gpus"]) == len(node.devices()) == 8
    assert node.cluster.node not in str(archive.documents)

    scene = Scene(node)
    manifest, resources = blocks("README.md", "Install it on a cluster", "yaml")
    template, _ = yaml.safe_load_all(manifest)
    made = scene.make(template["kind"], "large-gpu", {"spec": template["spec"]})
    claiming = scene.pod("claiming", templates=[made])
    scene.running(claiming, timeout=120)
    assert len(scene.gpus(claiming)) == 1
    scene.delete(claiming)
    limits = yaml.safe_load(resources)["resources"]["limits"]
    pod = scene.pod(limits=limits)
    scene.running(pod, timeout=120)
    assert len(scene.gpus(pod)) == limits["nvidia.com/gpu"] == 2
    scene.delete(pod)
    reader.types(share)
    wait_until(lambda: len(shares(node)) == 80, "ten shares of each GPU", timeout=180)
    tenth = scene.pod("tenth", limits={"nvidia.com/gpu": 1})
    scene.running(tenth, timeout=120)
    scene.clear()

    reader.types(take_away)
    node.cluster.kubectl("label", "node", node.cluster.node, f"{LABEL}-")
    wait_gone(node.cluster.api, NAMESPACE)
    assert not node.place.data.exists()
    wait_until(lambda: node.slices() == [], "the kubelet to delete the slices", timeout=60)


def gathered_in_the_pod(node: InstalledNode, reader: Reader, folder: Path) -> gathering.Archive:
    """What the driver's pod gathers, by the command of the page."""
    page = (REPOSITORY / "docs/gather.md").read_text().splitlines()
    (command,) = [line for line in page if line.startswith("kubectl exec ")]
    (pod,) = node.driver_pods(labelSelector="app.kubernetes.io/component=kubelet-plugin")
    reader.types(f"cd {folder}\n{command.replace('POD', pod['metadata']['name'])}")
    return gathering.unpack(folder / "node.tar.gz")


def shares(node: InstalledNode) -> list[str]:
    return [device for device in node.devices() if "-share-" in device]
