"""A node of A100 with 40 GB: how MIG mode gets on there, and what claims get of a GPU in it."""

from collections.abc import Iterator

import pytest
from testbed.commands import run, wait_until
from testbed.machine import DRIVER
from testbed.mig import switch_by_reset
from testbed.node import GpuNode

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.conftest import node_of
from e2e.kubernetes import counters_are_cheap, needs
from e2e.scene import Scene
from e2e.test_mig import migs, parent, pod_of_requests, seen, template, there

pytestmark = [pytest.mark.e2e, pytest.mark.own_cluster, needs(Feature.COUNTERS)]

PROFILES = {"1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"}
PARTS = 7 + 7 + 4 + 3 + 2 + 1 + 1
DIVIDED = (0, 1)
"""Minor numbers of the GPUs that most tests find in MIG mode."""
WHOLE = 8 - len(DIVIDED)

FOUR = {"small0": "1g.5gb", "small1": "1g.5gb", "medium": "2g.10gb", "large": "3g.20gb"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuNode]:
    """A node of eight A100, none in MIG mode; its driver makes MIG devices on those that are."""
    settings = {} if counters_are_cheap() else {"MIG": "on-demand"}
    with node_of("a100x8", tmp_path_factory.mktemp("a100"), **settings) as node:
        yield node


@pytest.fixture(scope="module")
def divided(node: GpuNode) -> GpuNode:
    """The node with some of its GPUs in MIG mode."""
    switch_by_reset(node, DIVIDED, on=True)
    return node


def published_profiles(scene: Scene, minor: int) -> list[str]:
    """The profiles of the MIG devices that are offered of a GPU, one for each place."""
    return [
        device["attributes"]["profile"]["string"]
        for one in scene.node.slices()
        for device in one.get("devices", [])
        if device["name"].startswith(f"gpu-{minor}-mig-")
    ]


def parents(scene: Scene) -> set[str]:
    """The GPUs that have MIG devices."""
    return set(scene.node.machine.mig_parents())


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
        timeout=30,
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


@pytest.mark.long(
    "tests/contract/claims/test_mig.py"
    "::test_an_ampere_gpu_in_mig_mode_is_divided_into_any_profile_and_stays_in_it"
)
@pytest.mark.usefixtures("divided")
def test_four_mig_devices_of_a_claim_are_made_on_one_a100_and_gone_after(scene: Scene) -> None:
    name = template(scene, migs(on_one_gpu=True, **FOUR))
    assert there(scene) == 0
    one, two = (pod_of_requests(scene, name, *FOUR, name=pod) for pod in ("one", "two"))
    scene.running(one, two)
    assert there(scene) == 8
    gpus = set()
    for pod in (one, two):
        (gpu,) = {parent(scene, pod, ctr) for ctr in FOUR}
        gpus.add(gpu)
        devices = [seen(scene, pod, ctr) for ctr in FOUR]
        assert [list(device.values()) for device in devices] == [[cut] for cut in FOUR.values()]
        assert len({uuid for device in devices for uuid in device}) == len(FOUR)
    assert gpus == parents(scene)
    # Both GPUs are full, to the last slice.
    late = pod_of_requests(scene, name, *FOUR, name="late")
    assert "cannot allocate all claims" in scene.unschedulable(late)
    scene.delete(one)
    scene.running(late)
    assert there(scene) == 8
    scene.delete(two, late)
    assert there(scene) == 0


@pytest.mark.long(
    "tests/contract/claims/test_mig.py"
    "::test_an_ampere_gpu_in_mig_mode_is_divided_into_any_profile_and_stays_in_it"
)
@pytest.mark.usefixtures("divided")
@pytest.mark.parametrize(
    "wanted",
    [("7g.40gb", "2g.10gb", "1g.10gb", "1g.5gb", "1g.5gb+me"), ("3g.20gb", "4g.20gb")],
    ids=["one whole and small ones", "two halves"],
)
def test_every_profile_can_be_had(scene: Scene, wanted: tuple[str, ...]) -> None:
    requests = {f"r{number}": profile for number, profile in enumerate(wanted)}
    pod = pod_of_requests(scene, template(scene, migs(**requests)), *requests)
    scene.running(pod)
    for ctr, profile in requests.items():
        assert list(seen(scene, pod, ctr).values()) == [profile]
    scene.delete(pod)
    assert there(scene) == 0


@pytest.mark.long("tests/e2e/test_mig.py::test_mig_devices_come_as_extended_resources")
@pytest.mark.usefixtures("divided")
def test_mig_devices_of_an_a100_are_had_by_resource_name(scene: Scene) -> None:
    resource = "nvidia.com/mig-1g.5gb"
    scene.node.cluster.kubectl("apply", "-f", "-", stdin=run((DRIVER, "classes", resource)))
    try:
        one, two = (scene.pod(f"of-{count}", limits={resource: count}) for count in (1, 2))
        scene.running(one, two)
        assert [*seen(scene, one).values()] == ["1g.5gb"]
        assert [*seen(scene, two).values()] == ["1g.5gb"] * 2
        assert seen(scene, one).keys().isdisjoint(seen(scene, two))
        scene.delete(one, two)
        assert there(scene) == 0
    finally:
        scene.api.delete("DeviceClass", "mig-1g.5gb.resource.nvidia.com")


@pytest.mark.long(
    "tests/e2e/test_mig_modes.py"
    "::test_auto_divides_the_gpu_that_its_admin_put_in_mig_mode_and_no_other"
)
@pytest.mark.usefixtures("divided")
def test_a_gpu_in_mig_mode_is_not_given_out_as_a_whole(scene: Scene) -> None:
    whole = scene.pod("whole", claims=[scene.claim("whole", count=WHOLE)])
    part = scene.pod("part", templates=[template(scene, migs(mig="1g.5gb"))])
    scene.running(whole, part)
    assert len(set(scene.gpus(whole))) == WHOLE
    assert parent(scene, part) not in scene.gpus(whole)
    scene.delete(part)
    late = scene.pod("late", claims=[scene.claim("late", count=1)])
    assert "cannot allocate all claims" in scene.unschedulable(late)
    scene.delete(whole)
    scene.running(late)
