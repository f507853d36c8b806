"""A node of A100 with 40 GB: how MIG mode gets on there."""

from collections.abc import Iterator

import pytest
from testbed.cluster import Cluster
from testbed.commands import wait_until
from testbed.mig import switch_by_reset
from testbed.node import GpuNode

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.conftest import node_of
from e2e.kubernetes import counters_are_cheap, needs
from e2e.scene import Scene

pytestmark = [pytest.mark.e2e, pytest.mark.stream("two"), needs(Feature.COUNTERS)]

PROFILES = {"1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"}
PARTS = 7 + 7 + 4 + 3 + 2 + 1 + 1


@pytest.fixture(scope="module")
def node(lasting: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuNode]:
    """A node of eight A100, none in MIG mode; its driver makes MIG devices on those that are."""
    settings = {} if counters_are_cheap() else {"MIG": "on-demand"}
    with node_of("a100x8", tmp_path_factory.mktemp("a100"), lasting, **settings) as node:
        yield node


def published_profiles(scene: Scene, minor: int) -> list[str]:
    """The profiles of the MIG devices that are offered of a GPU, one for each place."""
    return [
        device["attributes"]["profile"]["string"]
        for one in scene.node.slices()
        for device in one.get("devices", [])
        if device["name"].startswith(f"gpu-{minor}-mig-")
    ]


@pytest.mark.long(
    "tests/contract/test_app_mig_modes.py"
    "::test_a_mode_that_an_admin_changes_changes_the_offer_and_none_is_switched"
)
def test_an_admin_turns_mig_mode_on_and_off_while_the_driver_runs(scene: Scene) -> None:
    node, minor = scene.node, 7
    before, pid = set(node.devices()), node.driver.pid
    assert f"gpu-{minor}" in before
    assert published_profiles(scene, minor) == []

    assert "pending" in node.machine.mig("on", "--gpu", f"minor:{minor}")
    waiting: list[str] = wait_until(
        lambda: [*node.driver.events("gpus found")][-1]["awaiting_reset"],
        "the mode to be seen",
        timeout=120,
    )
    # Until the reset the GPU is what it was, and a claim gets it as a whole.
    assert set(node.devices()) == before
    whole = [name for name in before if "-mig-" not in name]
    pod = scene.pod("all", claims=[scene.claim("all", count=len(whole))])
    scene.running(pod)
    assert set(waiting) < set(scene.gpus(pod))
    scene.delete(pod)

    switch_by_reset(node, [minor], on=True)
    assert set(published_profiles(scene, minor)) == PROFILES
    assert len(published_profiles(scene, minor)) == PARTS
    others = {name for name in node.devices() if not name.startswith(f"gpu-{minor}-mig-")}
    assert others == before - {f"gpu-{minor}"}

    switch_by_reset(node, [minor], on=False)
    assert set(node.devices()) == before
    assert node.driver.pid == pid
    scene.rewritten()
