"""The driver, the kubelet, the API server or files go away under running pods, and come back.

Running containers never notice; what starts or ends meanwhile is made good afterwards.
"""

import time
from collections.abc import Iterator

import pytest
from testbed.commands import wait_until

from e2e.scene import Scene

pytestmark = [pytest.mark.e2e, pytest.mark.stream("own")]


@pytest.fixture(autouse=True)
def everything_back_up(scene: Scene, request: pytest.FixtureRequest) -> Iterator[None]:
    """Start what a failed test left stopped, since the tests after it need it."""
    before = request.session.testsfailed
    yield
    if request.session.testsfailed == before:
        return
    scene.node.cluster.up(print)
    if not scene.node.driver.running():
        scene.node.driver.start()
        scene.node.driver.wait_registered()


def test_pods_outlive_a_killed_driver_and_go_after_its_restart(scene: Scene) -> None:
    template = scene.template()
    one, two = (scene.pod(name, templates=[template]) for name in ("one", "two"))
    scene.running(one, two)
    containers, gpus = scene.container_ids(one, two), (scene.gpus(one), scene.gpus(two))

    scene.node.driver.kill()
    assert (scene.gpus(one), scene.gpus(two)) == gpus
    scene.node.driver.start()
    scene.node.driver.wait_registered()

    assert scene.container_ids(one, two) == containers
    assert (scene.gpus(one), scene.gpus(two)) == gpus
    three = scene.pod("three", templates=[template])
    scene.running(three)
    assert scene.gpus(three) not in gpus
    scene.delete(one, two, three)


def test_pods_outlive_a_kubelet_restart(scene: Scene) -> None:
    template = scene.template()
    pod = scene.pod(templates=[template])
    scene.running(pod)
    containers, gpus = scene.container_ids(pod), scene.gpus(pod)

    scene.node.cluster.stop("kubelet")
    scene.node.cluster.start("kubelet")
    # A starting kubelet deletes all ResourceSlices of its node.
    new = scene.pod("new", templates=[template])
    scene.running(new, timeout=90)

    scene.running(pod)
    assert scene.container_ids(pod) == containers
    assert scene.gpus(pod) == gpus
    assert scene.gpus(new) != gpus
    scene.rewritten()


def test_a_container_restarts_after_the_cdi_folder_was_emptied(scene: Scene) -> None:
    place = scene.node.place
    pod = scene.pod(templates=[scene.template()])
    scene.running(pod)
    gpus, prepared = scene.gpus(pod), place.left_over()

    scene.node.driver.stop()
    for path in place.cdi_root.iterdir():
        path.unlink()
    scene.node.driver.start()
    wait_until(lambda: place.left_over() == prepared, "the CDI spec to be back", timeout=120)
    scene.restart_containers(pod)
    assert scene.gpus(pod) == gpus


def test_a_pod_that_starts_while_the_driver_is_down_runs_once_it_is_up(scene: Scene) -> None:
    scene.node.driver.stop()
    pod = scene.pod(templates=[scene.template()])
    # "Not registered", or "unavailable" when the kubelet has not yet seen the socket go.
    scene.warning(pod, "FailedPrepareDynamicResources")
    scene.node.driver.start()
    scene.running(pod)
    assert len(scene.gpus(pod)) == 1


def test_pods_and_driver_outlive_an_outage_of_the_api_server(scene: Scene) -> None:
    template = scene.template()
    pod = scene.pod(templates=[template])
    scene.running(pod)
    containers, gpus = scene.container_ids(pod), scene.gpus(pod)

    scene.node.cluster.stop("kube-apiserver", signal="KILL")
    time.sleep(10)  # the outage itself: longer than first retries take
    assert scene.node.driver.running()
    scene.node.cluster.start("kube-apiserver")

    new = scene.pod("new", templates=[template])
    scene.running(new, timeout=120)
    assert scene.container_ids(pod) == containers
    assert scene.gpus(pod) == gpus
    assert scene.gpus(new) != gpus
    scene.published()
