"""Driver, MPS supervisor and MPS daemons are killed, idle and at work: nothing is lost or left."""

from collections.abc import Iterator

import pytest
from testbed import mps
from testbed.commands import wait_until
from testbed.driver import DriverProcess

from e2e.scene import Scene
from e2e.sharing import (
    MEMORY,
    PERCENTAGE,
    UNDER_MPS,
    USUAL,
    Shared,
    mps_limits,
    status,
)

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("mps_node")]

SLOW = 4.0
"""Seconds that a daemon takes to start where something shall be killed meanwhile."""


@pytest.fixture(autouse=True)
def everything_back_up(scene: Scene) -> Iterator[None]:
    """Start what a failed test left stopped, since the tests after it need it."""
    yield
    for process in (scene.node.supervisor, scene.node.driver):
        if not process.running():
            process.start()


@pytest.fixture(params=["driver", "supervisor"])
def process(request: pytest.FixtureRequest, scene: Scene) -> DriverProcess:
    """Each of the two in turn."""
    found: DriverProcess = getattr(scene.node, request.param)
    return found


def test_a_daemon_and_its_pods_outlive_a_kill_of_driver_and_supervisor(
    scene: Scene, process: DriverProcess
) -> None:
    shared = Shared.make(scene, gpu=mps_limits())
    pod = shared.pod()
    scene.running(pod)
    daemon, containers, gpu = shared.daemon(), scene.container_ids(pod), shared.gpu(pod)

    process.kill()
    assert shared.daemon() == daemon
    assert shared.ask(f"{MEMORY} 0") == "10G"
    process.start()
    wait_until(lambda: "daemons keep running" not in status(scene), "the supervisor", timeout=120)

    new = Shared.make(scene, "new", gpu=mps_limits(20))
    other = new.pod("other")
    scene.running(other, timeout=120)
    assert new.ask(PERCENTAGE) == "20.0"
    assert (shared.daemon(), scene.container_ids(pod)) == (daemon, containers)
    assert shared.settings(gpu) == UNDER_MPS
    scene.delete(pod, other)
    assert mps.processes(scene.node.place.plugins) == {}
    assert shared.settings(gpu) == USUAL


def test_a_pod_deleted_while_its_daemon_starts_leaves_nothing(scene: Scene) -> None:
    place = scene.node.place
    shared = Shared.make(scene, gpu=mps_limits())
    with mps.slow_start(place.driver_root, SLOW):
        pod = shared.pod()
        wait_until(place.mps_files, "the domain to be wanted", timeout=120, interval=0.05)
        scene.delete(pod)
    wait_until(lambda: not place.left_over(), "everything to be taken back", timeout=120)


def test_a_pod_that_starts_without_a_supervisor_runs_once_it_is_up(scene: Scene) -> None:
    scene.node.supervisor.stop()
    shared = Shared.make(scene, gpu=mps_limits())
    pod = shared.pod()
    said = scene.warning(pod, "FailedPrepareDynamicResources", timeout=90)
    assert "the MPS supervisor is not running on this node: deploy `dra-driver mps-super" in said
    scene.node.supervisor.start()
    scene.running(pod, timeout=180)
    assert shared.ask(PERCENTAGE) == "50.0"
