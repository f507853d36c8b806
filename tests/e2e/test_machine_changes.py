"""GPUs come and go, and the GPU driver is replaced, while the driver and pods with GPUs run."""

from collections.abc import Iterator

import pytest
from testbed.claims import mig_profile
from testbed.commands import wait_until

import driver_tree
from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.kubernetes import needs
from e2e.scene import Scene, cel
from e2e.sharing import Shared, time_slicing

pytestmark = [pytest.mark.e2e, pytest.mark.stream("own")]

GPU = "minor:7"
DEVICE = "gpu-7"


@pytest.fixture(autouse=True)
def machine_as_before(scene: Scene) -> Iterator[None]:
    """Mend the machine after a test, whether it went well or not."""
    yield
    machine = scene.node.machine
    machine.fault("add", GPU)
    scene.rewritten()


def test_a_removed_gpu_is_not_offered_until_it_returns(scene: Scene) -> None:
    other = scene.pod("other", templates=[scene.template(selectors=not_the_device(scene))])
    scene.running(other)
    gpus = scene.gpus(other)

    scene.node.machine.fault("remove", GPU)
    wait_until(lambda: DEVICE not in scene.node.devices(), f"{DEVICE} to go", timeout=120)
    scene.node.wait_published()
    assert len([name for name in scene.node.devices() if "-mig-" not in name]) == 7
    assert scene.gpus(other) == gpus

    scene.node.machine.fault("add", GPU)
    wait_until(lambda: DEVICE in scene.node.devices(), f"{DEVICE} to be back", timeout=120)
    assert scene.gpus(other) == gpus


def not_the_device(scene: Scene) -> list[dict[str, object]]:
    """A selector of all GPUs but the one that this test does things to."""
    (uuid,) = (
        device["attributes"]["uuid"]["string"]
        for one in scene.node.slices()
        for device in one.get("devices", [])
        if device["name"] == DEVICE
    )
    return cel(f'device.attributes["gpu.nvidia.com"].uuid != "{uuid}"')


@pytest.mark.driver(MIG="on-demand")
@needs(Feature.COUNTERS)
def test_containers_restart_after_the_gpu_driver_was_upgraded_under_their_claims(
    scene: Scene,
) -> None:
    profile = mig_profile("1g.10gb")
    pods = [
        scene.pod("whole", templates=[scene.template("whole")]),
        Shared.make(scene, gpu=time_slicing("Long")).pod("sliced"),
        scene.pod(
            "mig",
            templates=[scene.template("mig", deviceClassName="mig.nvidia.com", selectors=profile)],
        ),
    ]
    scene.running(*pods)
    gpus = {pod: scene.gpus(pod) for pod in pods}
    root = scene.node.machine.root
    (library,) = root.rglob("libcuda.so.*.*")
    old, new = library.name.removeprefix("libcuda.so."), "999.1.2"
    try:
        driver_tree.upgrade(root, old, new)
        wait_until(lambda: not told(scene, library.name), "specs without old files", timeout=60)
        scene.restart_containers(*pods)
        assert {pod: scene.gpus(pod) for pod in pods} == gpus
    finally:
        driver_tree.upgrade(root, new, old)
        wait_until(lambda: not told(scene, new), "specs with the old files again", timeout=60)


def told(scene: Scene, word: str) -> bool:
    """Whether any claim's CDI spec has a word."""
    return any(word in path.read_text() for path in scene.node.place.cdi_root.glob("*.json"))
