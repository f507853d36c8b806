"""A node of two boards of four GPUs: claims for joined GPUs, with a real scheduler."""

from collections.abc import Iterator

import pytest
from testbed.api import Object
from testbed.cluster import Cluster
from testbed.driver import DRIVER_NAME
from testbed.node import GpuNode

from e2e.conftest import node_of
from e2e.scene import Scene

pytestmark = [pytest.mark.e2e, pytest.mark.stream("two")]

ISLAND = "nvlinkIsland"


@pytest.fixture(scope="module")
def node(lasting: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuNode]:
    """Eight A100 on two boards, beside the node of all other tests."""
    with node_of("a100-4x2", tmp_path_factory.mktemp("boards"), lasting) as node:
        yield node


def islands(scene: Scene) -> dict[str, str | None]:
    """The island of each GPU, by UUID, as it is published."""
    found: dict[str, str | None] = {}
    for one in scene.node.slices():
        for device in one.get("devices", []):
            facts = device["attributes"]
            found[facts["uuid"]["string"]] = facts.get(ISLAND, {}).get("string")
    return found


def joined(scene: Scene) -> str:
    """A template of claims for four GPUs of one island."""
    spec: Object = {
        "devices": {
            "requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER_NAME, "count": 4}}],
            "constraints": [{"requests": ["gpu"], "matchAttribute": f"{DRIVER_NAME}/{ISLAND}"}],
        }
    }
    return scene.make("ResourceClaimTemplate", "joined", {"spec": {"spec": spec}})


def test_two_claims_for_four_joined_gpus_get_an_island_each(scene: Scene) -> None:
    where = islands(scene)
    assert sorted(map(list(where.values()).count, set(where.values()))) == [4, 4]
    template = joined(scene)
    pods = [scene.pod(name, templates=[template]) for name in ("one", "other")]
    scene.running(*pods, timeout=120)
    got = [{where[uuid] for uuid in scene.gpus(pod)} for pod in pods]
    assert [len(scene.gpus(pod)) for pod in pods] == [4, 4]
    assert [len(one) for one in got] == [1, 1]
    assert got[0] != got[1]
