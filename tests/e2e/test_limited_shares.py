"""Shares whose memory is limited on the control groups of pods, as a real kubelet makes them.

One node with one simulated H100 and a driver of R615 that counts by itself (misc). That way of
counting takes cgroup v2 for who a process is, and none of its controllers: so a machine with both
versions will do, whose kubelet and runc put pods into the hierarchy of version 2 as well. Who asks
for memory are processes of real containers; that they ask is played.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbed.cluster import Cluster
from testbed.commands import wait_until

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.conftest import h100x1
from e2e.kubernetes import needs
from e2e.scene import NAMESPACE, Scene
from e2e.shares import (
    GPU,
    Shares,
    config,
    limits_by_control_group,
    restarted,
    shares_of,
    unshared_scene,
)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.stream("two"),
    needs(Feature.COUNTERS, Feature.EXTENDED_RESOURCE),
]

REPLICAS = 4
"""The class of a share, where there are shares."""


@pytest.fixture(scope="module")
def shares(lasting: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shares]:
    options = limits_by_control_group()
    folder = tmp_path_factory.mktemp("limited")
    with shares_of(h100x1(folder), folder, lasting, machine_options=options) as found:
        yield found


@pytest.fixture
def scene(shares: Shares, request: pytest.FixtureRequest) -> Iterator[Scene]:
    shares.write(config())
    for scene in unshared_scene(shares, request):
        shares.set(config("timeSlicing", REPLICAS), REPLICAS)
        yield scene


@pytest.fixture
def asking(scene: Scene) -> "Iterator[Asking]":
    asking = Asking(scene)
    yield asking
    asking.end(*asking.asked)


class Asking:
    """Processes of containers that ask for memory of the GPU.

    The GPU driver sees a process end; the simulated one is told, by `see`.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene, self._machine = scene, scene.node.machine
        self.asked: set[int] = set()

    def __call__(self, pod: str, mib: int, ctr: str = "ctr") -> bool:
        """Whether a container's first process gets so many MiB more."""
        pid = self.pid(pod, ctr)
        self.asked.add(pid)
        return self._machine.take_memory("0", mib, pid=pid)

    def pid(self, pod: str, ctr: str = "ctr") -> int:
        """The id on this host of the first process in a container."""
        found = self._scene.api.get("Pod", pod, NAMESPACE)["status"]["containerStatuses"]
        (status,) = [one for one in found if one["name"] == ctr]
        name = status["containerID"].rpartition("/")[2]
        return min(int(one.name) for one in Path("/proc").glob("[0-9]*") if name in _groups(one))

    def see(self) -> None:
        """Have the GPU driver see which of the processes have ended."""
        self.end(*(one for one in self.asked if not Path(f"/proc/{one}").exists()))

    def end(self, *processes: int) -> None:
        """Have the GPU driver take processes for ended: all that they had is free."""
        for pid in processes:
            self._machine.release_memory("0", pid=pid)
        self.asked.difference_update(processes)


def _groups(process: Path) -> str:
    try:
        return (process / "cgroup").read_text()
    except OSError:  # it has ended
        return ""


def restart(scene: Scene, pod: str) -> None:
    """End a pod's container, and wait until it runs again."""
    # A moment later, so that the command is not ended along with the container.
    scene.end_container(pod)
    wait_until(lambda: restarted(scene, pod), f"the container of {pod} to run again", timeout=60)


def test_an_over_asking_container_is_refused_and_its_neighbour_is_not(
    shares: Shares, scene: Scene, asking: Asking
) -> None:
    share = shares.memory_mib()
    greedy, modest = scene.pod("greedy", limits={GPU: 1}), scene.pod("modest", limits={GPU: 1})
    without = scene.pod("without")
    scene.running(greedy, modest, without)
    one = rf"gpu-0 +Shares +1 of 4 shares, {share} MiB, enforced by control groups \(NVML\) "
    assert re.search(one, shares.status())
    assert re.search(rf"gpu-0 +{GPU} .* control groups \(NVML\) ", shares.status())
    assert "gpu-0: persistence mode is off" in shares.status()

    assert not asking(greedy, share + 1)
    assert asking(modest, share)
    assert asking(greedy, share - 100)
    assert not asking(greedy, 101)
    assert not asking(modest, 1)
    assert not asking(without, 10)  # nobody has memory of a shared GPU but by a share
    assert asking(greedy, 100)


def test_a_restarted_container_is_limited_as_before_with_the_driver_dead_too(
    shares: Shares, scene: Scene, asking: Asking
) -> None:
    share, driver = shares.memory_mib(), scene.node.driver
    pod, other = scene.pod(limits={GPU: 1}), scene.pod("other", limits={GPU: 1})
    scene.running(pod, other)
    assert asking(pod, share)
    old = asking.pid(pod)
    driver.kill()
    restart(scene, pod)
    assert asking.pid(pod) != old
    assert not asking(pod, 1)  # the GPU driver has not yet seen the old process end
    assert not asking(other, share + 1)
    driver.start()
    driver.wait_registered()
    asking.see()
    assert not asking(pod, share + 1)
    assert asking(pod, share)
    assert asking(other, share)
    assert not asking(other, 1)
