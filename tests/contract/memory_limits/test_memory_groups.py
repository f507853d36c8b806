"""A pod's GPU memory is limited on its control group, and it is found out where that cannot be."""

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import make
from dra_driver.devices.device import Device, Whole
from dra_driver.devices.model import GpuUuid
from dra_driver.devices.session import DriverSession
from dra_driver.devices.shares import MIB, ConsumedShare, ShareStrategy
from dra_driver.errors import DeviceError
from dra_driver.sharing.limiters import Limiter
from dra_driver.sharing.memory_groups import MemoryGroups
from dra_driver.sharing.pod_groups import PodGroups
from dra_driver.sharing.steps import ShareLimits, UseShares
from dra_driver.simulator import profile as profiles
from dra_driver.simulator.machine import Machine
from worlds.groups import GIB, R615, kernels_groups, limited
from worlds.session import session_on


def use(pod: str, gpu: GpuUuid, mib: int) -> UseShares:
    """How a pod's claim uses so much memory of a GPU."""
    sliced = ShareStrategy.TIME_SLICING
    share = ConsumedShare(share_id=pod, strategy=sliced, memory_mib=mib)
    return UseShares(
        devices=(Device(base=Whole(gpu=gpu), share=share),),
        strategy=sliced,
        limits=(ShareLimits(taken=1, count=None, memory_mib=mib),),
        limited_by=Limiter.CONTROL_GROUPS,
        memory_mib=mib,
        pod=pod,
    )


class Node:
    """A machine, its pods, and what limits them, without records: `tenants` has the steps."""

    def __init__(self, folder: Path, driver: str = R615) -> None:
        self.machine, self.groups = limited(
            folder, "misc" if driver == R615 else "off", driver=driver
        )
        self.session: DriverSession = session_on(self.machine)
        self.session.look()
        self.one = GpuUuid(self.machine.find("0").uuid)
        self.tenants: list[UseShares] = []
        self.limits = MemoryGroups(
            self.session,
            PodGroups(self.groups.root),
            lambda _: self.tenants,
            is_wanted=True,
        )

    def limit(self, pod: str, gib: int) -> UseShares:
        """Limit a pod, in place of what it had."""
        step = use(pod, self.one, gib * 1024)
        self.tenants = [*(one for one in self.tenants if one.pod != pod), step]
        self.limits.do(step, 0.0)
        return step

    def unlimit(self, step: UseShares) -> None:
        if step in self.tenants:
            self.tenants.remove(step)
        self.limits.undo(step, 0.0)

    def hard(self, uuid: str, group: Path) -> int | None:
        return self.session.memory_limit(uuid, group)

    def take(self, group: Path, size: int, pid: int = 1) -> bool:
        return self.machine.take_memory(self.one, size, pid=pid, group=group)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    made.groups.make("kubepods.slice")
    yield made
    made.session.close()


@pytest.mark.parametrize(
    ("off", "stays"), [(4096 - MIB, True), (-4096, True), (-MIB, False), (4096, False)]
)
def test_a_limit_holds_that_the_driver_has_rounded_down_by_less_than_a_mib(
    node: Node, off: int, stays: bool
) -> None:
    pod, group = node.groups.pod()
    step = node.limit(pod, 1)
    node.session.set_memory_limit(node.one, group, GIB + off)
    node.limits.ensure(step)
    assert node.hard(node.one, group) == (GIB + off if stays else GIB)


def test_both_calls_can_be_repeated(node: Node) -> None:
    pod, group = node.groups.pod()
    for gib in (10, 10, 12):
        step = node.limit(pod, gib)
        assert node.hard(node.one, group) == gib * GIB
    for _ in range(2):
        node.unlimit(step)
        assert node.hard(node.one, group) is None
    shutil.rmtree(group)
    node.unlimit(step)


def test_a_limit_below_what_the_pod_has_is_an_error_and_the_old_one_stays(node: Node) -> None:
    pod, group = node.groups.pod(1)
    node.limit(pod, 10)
    node.take(next(group.glob("*.scope")), 8 * GIB)

    with pytest.raises(DeviceError, match="end them, and try again"):
        node.limit(pod, 4)
    assert node.hard(node.one, group) == 10 * GIB


def test_nothing_is_set_on_containers_at_any_time(node: Node) -> None:
    pod, group = node.groups.pod(1)
    container = next(group.glob("*.scope"))
    node.unlimit(node.limit(pod, 10))
    step = node.limit(pod, 5)

    assert not node.take(container, 6 * GIB)
    assert node.limits.free_containers(step) == []


def test_pods_of_each_kubelet_are_refused_and_admitted_again(node: Node) -> None:
    places = ("kubepods.slice", "kubelet.slice/kubelet-kubepods.slice")
    tops = [node.groups.make(place) for place in places]
    step = node.limit(node.groups.pod()[0], 1)
    assert [node.hard(node.one, top) for top in tops] == [MIB, MIB]
    for top in tops:
        node.session.set_memory_limit(node.one, top, None)
        assert node.limits.others_are_refused(node.one) is (top == tops[0])
    node.limits.ensure(step)
    assert [node.hard(node.one, top) for top in tops] == [MIB, MIB]
    node.unlimit(step)
    assert [node.hard(node.one, top) for top in tops] == [None, None]


def test_clearing_before_the_group_goes_keeps_a_later_group_free(node: Node) -> None:
    pod, group = node.groups.pod()
    node.unlimit(node.limit(pod, 1))
    # A rename keeps the directory's identity, as a new group at the same place can have it.
    other = group.rename(node.groups.root / "other")

    assert node.take(other, 2 * GIB)


def test_without_the_nodes_control_groups_the_reason_says_so(node: Node) -> None:
    (node.groups.root / "kubepods.slice").rename(node.groups.root / "other.slice")
    reason = node.limits.why_not(Whole(gpu=node.one))
    assert reason is not None
    assert reason.endswith("mount the node's /sys/fs/cgroup there")


def test_an_old_driver_is_named_before_other_reasons(tmp_path: Path) -> None:
    node = Node(tmp_path, driver="580.95.05")
    reason = "the GPU driver 580.95.05 is older than R615"
    for _ in range(2):
        assert node.limits.why_not(Whole(gpu=node.one)) == reason
        node.groups.make("kubepods.slice")
    node.session.close()


def test_where_the_kernel_counts_the_memory_pods_are_not_limited(node: Node) -> None:
    whole = Whole(gpu=node.one)
    assert node.limits.why_not(whole) is None
    (node.groups.root / "dmem.capacity").write_text("nvidia/0000:01:00.0/vidmem 85899345920\n")
    assert "the kernel counts GPU memory (dmem)" in (node.limits.why_not(whole) or "")


def test_mig_devices_are_not_limited(node: Node) -> None:
    mig = make.place(make.mig_device(0, "1g.10gb", 0))
    assert node.limits.why_not(mig) == "the GPU driver limits no memory of MIG devices"


@pytest.mark.usefixtures("needs_root")  # it makes control groups
def test_a_pod_in_the_kernels_own_hierarchy_is_limited(tmp_path: Path) -> None:
    uid = str(uuid.uuid4())
    newer = profiles.changed(profiles.load("t4x4"), {"driver_version": R615})
    with kernels_groups(f"kubepods/burstable/pod{uid}/container") as (mount, [container]):
        machine = Machine.create(tmp_path / "machine", newer)
        session = session_on(machine)
        gpu = GpuUuid(session.look().gpus[0].uuid)
        limits = MemoryGroups(session, PodGroups(mount), lambda _: (), is_wanted=True)
        limits.do(use(uid, gpu, 1024), 0.0)

        assert not machine.take_memory(gpu, 2 * GIB, group=container)
        assert machine.take_memory(gpu, GIB, group=container)
        session.close()
