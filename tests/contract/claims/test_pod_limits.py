"""A pod's GPU memory is limited on its control group, and it is found out where that cannot be."""

import shutil
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from dra_driver.devices.model import GpuUuid
from dra_driver.devices.session import DriverSession
from dra_driver.devices.shares import MIB
from dra_driver.errors import ConfigError, DeviceError, LostError, try_all
from dra_driver.sharing.pod_groups import PodGroups
from dra_driver.sharing.pod_limits import PodLimits
from dra_driver.simulator import profile as profiles
from dra_driver.simulator.machine import Machine
from worlds.groups import GIB, R615, kernels_groups, limited
from worlds.session import session_on

SET = "nvmlDeviceSetMemoryLimits_v1"


class Node:
    """A machine, its pods, and what limits them."""

    def __init__(self, folder: Path) -> None:
        self.machine, self.groups = limited(folder)
        self.session: DriverSession = session_on(self.machine)
        self.session.look()
        self.one, self.two = (GpuUuid(self.machine.find(index).uuid) for index in ("0", "1"))
        self.limits = PodLimits(gpus=self.session, groups=PodGroups(self.groups.root))

    def hard(self, uuid: str, group: Path) -> int | None:
        return self.session.memory_limit(uuid, group)

    def take(self, group: Path, size: int, pid: int = 1) -> bool:
        return self.machine.take_memory(self.one, size, pid=pid, group=group)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.session.close()


def test_a_limit_holds_that_the_driver_has_rounded_down_by_less_than_a_mib(node: Node) -> None:
    pod, _ = node.groups.pod()
    node.limits.limit(pod, node.one, GIB - 4096)
    sizes = (GIB - 8192, GIB - 4096, GIB, GIB + 2**20)
    held = [node.limits.holds(pod, node.one, size) for size in sizes]
    assert held == [False, True, True, False]


def test_a_container_that_comes_later_is_limited_from_its_start(node: Node) -> None:
    pod, group = node.groups.pod()
    node.limits.limit(pod, node.one, 10 * GIB)
    place = group.relative_to(node.groups.root)

    assert not node.take(node.groups.make(f"{place}/cri-containerd-late.scope"), 11 * GIB)


def test_both_calls_can_be_repeated(node: Node) -> None:
    pod, group = node.groups.pod()
    for _ in range(2):
        node.limits.limit(pod, node.one, 10 * GIB)
        assert node.hard(node.one, group) == 10 * GIB
    node.limits.limit(pod, node.one, 12 * GIB)
    assert node.hard(node.one, group) == 12 * GIB
    for _ in range(2):
        node.limits.unlimit(pod, node.one)
        assert node.hard(node.one, group) is None
    shutil.rmtree(group)
    node.limits.unlimit(pod, node.one)


def test_a_limit_below_what_the_pod_has_is_an_error_and_the_old_one_stays(node: Node) -> None:
    pod, group = node.groups.pod(1)
    node.limits.limit(pod, node.one, 10 * GIB)
    node.take(next(group.glob("*.scope")), 8 * GIB)

    with pytest.raises(DeviceError, match="end them, and try again"):
        node.limits.limit(pod, node.one, 4 * GIB)
    assert node.hard(node.one, group) == 10 * GIB


def test_nothing_is_set_on_containers_at_any_time(node: Node) -> None:
    pod, group = node.groups.pod(1)
    container = next(group.glob("*.scope"))
    node.limits.limit(pod, node.one, 10 * GIB)
    node.limits.unlimit(pod, node.one)
    node.limits.limit(pod, node.one, 5 * GIB)

    assert not node.take(container, 6 * GIB)
    assert node.limits.free_containers(pod, node.one, 5 * GIB) == ()


def test_pods_without_a_limit_are_refused(node: Node) -> None:
    (shared, group), (other, beside) = node.groups.pod(1), node.groups.pod(1)
    node.limits.limit(shared, node.one, 10 * GIB)
    node.limits.refuse_others(node.one)
    late = next(beside.glob("*.scope"))

    assert node.take(next(group.glob("*.scope")), 10 * GIB, pid=1)
    assert not node.take(late, GIB, pid=2)
    node.limits.limit(other, node.one, 2 * GIB)
    assert node.take(late, GIB, pid=2)
    for _ in range(2):
        node.limits.admit_others(node.one)
    _, third = node.groups.pod()
    assert node.take(third, GIB, pid=3)


def test_pods_of_each_kubelet_are_refused_and_admitted_again(node: Node) -> None:
    places = ("kubepods.slice", "kubelet.slice/kubelet-kubepods.slice")
    tops = [node.groups.make(place) for place in places]
    node.limits.refuse_others(node.one)
    assert [node.hard(node.one, top) for top in tops] == [MIB, MIB]
    for top in tops:
        node.session.set_memory_limit(node.one, top, None)
        assert node.limits.are_others_refused(node.one) is (top == tops[0])
    node.limits.refuse_others(node.one)
    node.limits.admit_others(node.one)
    assert [node.hard(node.one, top) for top in tops] == [None, None]


@pytest.mark.parametrize("size", [0, -1])
def test_no_memory_at_all_cannot_be_a_limit(node: Node, size: int) -> None:
    pod, group = node.groups.pod()
    with pytest.raises(ConfigError, match=f"cannot have {size} bytes"):
        node.limits.limit(pod, node.one, size)
    assert node.hard(node.one, group) is None


def test_a_gpu_that_refuses_keeps_no_other_from_being_cleared(node: Node) -> None:
    pod, group = node.groups.pod()
    first, second = sorted((node.one, node.two))
    for gpu in (first, second):
        node.limits.limit(pod, gpu, GIB)
    node.machine.lose_gpu(first)

    with pytest.raises(LostError):
        try_all(partial(node.limits.unlimit, pod, gpu) for gpu in (first, second))
    assert node.hard(second, group) is None


def test_a_refused_limit_leaves_those_that_were_set(node: Node) -> None:
    pod, group = node.groups.pod()
    first, second = sorted((node.one, node.two))
    node.machine.fail_call(SET, 4, uuid=second)

    node.limits.limit(pod, first, GIB)
    with pytest.raises(DeviceError, match="may not set memory limits"):
        node.limits.limit(pod, second, GIB)
    assert node.hard(first, group) == GIB


def test_clearing_before_the_group_goes_keeps_a_later_group_free(node: Node) -> None:
    pod, group = node.groups.pod()
    node.limits.limit(pod, node.one, GIB)
    node.limits.unlimit(pod, node.one)
    # A rename keeps the directory's identity, as a new group at the same place can have it.
    other = group.rename(node.groups.root / "other")

    assert node.take(other, 2 * GIB)


def test_without_the_nodes_control_groups_the_reason_says_so(node: Node) -> None:
    reason = node.limits.why_not(node.one)
    assert reason is not None
    assert reason.endswith("mount the node's /sys/fs/cgroup there")


def test_where_the_kernel_counts_the_memory_pods_are_not_limited(node: Node) -> None:
    node.groups.make("kubepods.slice")
    assert node.limits.why_not(node.one) is None
    (node.groups.root / "dmem.capacity").write_text("nvidia/0000:01:00.0/vidmem 85899345920\n")
    assert "the kernel counts GPU memory (dmem)" in (node.limits.why_not(node.one) or "")


@pytest.mark.usefixtures("needs_root")  # it makes control groups
def test_a_pod_in_the_kernels_own_hierarchy_is_limited(tmp_path: Path) -> None:
    uid = str(uuid.uuid4())
    newer = profiles.changed(profiles.load("t4x4"), {"driver_version": R615})
    with kernels_groups(f"kubepods/burstable/pod{uid}/container") as (mount, [container]):
        machine = Machine.create(tmp_path / "machine", newer)
        session = session_on(machine)
        gpu = GpuUuid(session.look().gpus[0].uuid)
        limits = PodLimits(gpus=session, groups=PodGroups(mount))
        limits.limit(uid, gpu, GIB)

        assert not machine.take_memory(gpu, 2 * GIB, group=container)
        assert machine.take_memory(gpu, GIB, group=container)
        assert limits.holds(uid, gpu, GIB)
        session.close()
