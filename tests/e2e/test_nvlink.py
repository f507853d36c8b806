"""A node of two boards of four GPUs: claims for joined GPUs, with a real scheduler."""

import time
from collections.abc import Iterator

import pytest
from testbed.api import Object
from testbed.cluster import Cluster
from testbed.commands import wait_until
from testbed.driver import DRIVER_NAME
from testbed.node import GpuNode

from e2e.conftest import node_of
from e2e.scene import Scene

pytestmark = [pytest.mark.e2e, pytest.mark.stream("two")]

ISLAND = "nvlinkIsland"
SETTLED_S = 3.0


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


@pytest.mark.long(
    "tests/contract/devices/test_nvlink.py::test_a_link_that_goes_down_is_noticed_within_some_looks"
)
def test_links_that_fail_change_what_is_published_and_nothing_that_claims_have(
    scene: Scene,
) -> None:
    before, template = islands(scene), joined(scene)
    pod = scene.pod("four", templates=[template])
    scene.running(pod)
    has, ids = set(scene.gpus(pod)), scene.container_ids(pod)
    gpu = min(has)
    for link in range(12):
        scene.node.machine.nvlink(gpu, link, "down")
    # At every tenth look, of which there is one each second.
    wait_until(lambda: islands(scene)[gpu] is None, "the GPU to leave its island", timeout=120)
    after = islands(scene)
    assert set(after) == set(before)
    assert len({after[uuid] for uuid in has - {gpu}}) == 1
    time.sleep(SETTLED_S)
    assert (set(scene.gpus(pod)), scene.container_ids(pod)) == (has, ids)
    assert "nvlinks went down" in scene.node.driver.tail(200)
    scene.delete(pod)
    four = scene.pod("another-four", templates=[template])
    scene.running(four)
    assert not set(scene.gpus(four)) & has
    for link in range(12):
        scene.node.machine.nvlink(gpu, link, "up")
    wait_until(lambda: islands(scene) == before, "the GPU to be back in its island", timeout=120)
    scene.rewritten()
