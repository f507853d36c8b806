"""GPUs come and go while the driver runs: the other GPUs and their pods are not touched."""

from collections.abc import Iterator

import pytest
from testbed.commands import wait_until

from e2e.scene import Scene, cel

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


def test_a_gpu_that_was_taken_out_is_offered_no_more_until_it_is_back(scene: Scene) -> None:
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
