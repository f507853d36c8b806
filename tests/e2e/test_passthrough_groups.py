"""Two GPUs for virtual machines in one IOMMU group, and tenants of two namespaces who want one."""

from collections.abc import Iterator

import pytest
from testbed.cluster import Cluster
from testbed.node import GpuNode

from e2e.next_tenant import NEXT, OTHER, ask, namespace_of
from e2e.scene import Scene, claim_spec
from e2e.test_passthrough import CLASS, FOR_MACHINES, machine_node, template

pytestmark = [pytest.mark.e2e, pytest.mark.stream("two")]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, lasting: Cluster) -> Iterator[GpuNode]:
    with machine_node(tmp_path_factory.mktemp("group"), lasting, FOR_MACHINES) as node:
        yield node


def test_two_namespaces_never_get_one_group(scene: Scene) -> None:
    assert not [name for name in scene.node.devices() if "vfio" in name]
    with namespace_of(scene):
        ask(scene, claim_spec(deviceClassName=CLASS))
        here = scene.pod("machine", templates=[template(scene)])
        scene.unschedulable(here)
        assert scene.api.get("Pod", NEXT, OTHER)["status"]["phase"] == "Pending"
        scene.delete(here)
