"""Memory limits through the driver's own NVML session: read back, explained, and known to work."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.devices.nvml import memory_limits
from dra_driver.devices.session import DriverSession
from dra_driver.errors import DeviceError, LostError, TransientError
from dra_driver.simulator.machine import Machine
from worlds.groups import GIB, MIB, limited
from worlds.session import session_on

SET, GET = "nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"


class Node:
    """A machine with a driver that looks at it, and control groups."""

    def __init__(self, folder: Path, backend: str, driver: str) -> None:
        self.machine, self.groups = limited(folder, backend, driver=driver)
        self.session: DriverSession = session_on(self.machine)
        self.session.look()
        self.uuid = self.machine.find("0").uuid
        self.top = self.groups.make("kubepods")

    def obstacle(self, group: Path | None = None) -> str:
        found = self.session.can_limit_memory(self.uuid, group or self.top)
        assert found is not None
        return found


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path, "misc", "615.71.09")
    yield made
    made.session.close()


def test_a_limit_is_set_read_and_cleared(node: Node) -> None:
    pod = node.groups.make("kubepods/pod")

    node.session.set_memory_limit(node.uuid, pod, 10 * GIB)
    assert node.session.memory_limit(node.uuid, pod) == 10 * GIB
    assert not node.machine.take_memory(node.uuid, 11 * GIB, group=pod)
    node.session.set_memory_limit(node.uuid, pod, None)
    assert node.session.memory_limit(node.uuid, pod) is None
    assert node.machine.take_memory(node.uuid, 11 * GIB, group=pod)


def test_a_limit_without_effect_is_an_error_with_the_cause(node: Node) -> None:
    pod = node.groups.make("kubepods/pod")
    node.session.set_memory_limit(node.uuid, pod, 10 * GIB)
    node.machine.take_memory(node.uuid, 8 * GIB, group=pod)
    cause = "processes of the control group use more than that now"
    with pytest.raises(DeviceError, match=cause):
        node.session.set_memory_limit(node.uuid, pod, 4 * GIB)

    assert node.session.memory_limit(node.uuid, pod) == 10 * GIB


def test_a_group_that_is_gone_is_an_error_that_names_it(node: Node) -> None:
    gone = node.top / "gone"
    for call in (
        lambda: node.session.set_memory_limit(node.uuid, gone, GIB),
        lambda: node.session.memory_limit(node.uuid, gone),
    ):
        with pytest.raises(DeviceError, match=f"of {gone}: the control group does not exist"):
            call()


def test_the_root_of_all_groups_is_refused_with_what_to_do(node: Node) -> None:
    with pytest.raises(DeviceError, match=r"does not limit memory there .*enable the controller"):
        node.session.set_memory_limit(node.uuid, node.groups.root, GIB)


def test_a_missing_permission_says_what_to_run(node: Node) -> None:
    pod = node.groups.make("kubepods/pod")
    node.machine.fail_call(SET, 4)
    with pytest.raises(DeviceError, match=r"may not set memory limits .*container privileged"):
        node.session.set_memory_limit(node.uuid, pod, GIB)


def test_a_lost_gpu_is_recognised(node: Node) -> None:
    pod = node.groups.make("kubepods/pod")
    node.machine.lose_gpu(node.uuid)
    with pytest.raises(LostError):
        node.session.set_memory_limit(node.uuid, pod, GIB)


def test_nothing_is_asked_of_a_library_that_is_closed(node: Node) -> None:
    node.session.close()
    with pytest.raises(TransientError):
        node.session.memory_limit(node.uuid, node.top)


def test_a_node_that_can_limit_memory_says_so_and_is_not_asked_again(node: Node) -> None:
    assert node.session.can_limit_memory(node.uuid, node.top) is None
    node.machine.fail_call(SET, 3)
    node.machine.fail_call(GET, 3)
    assert node.session.can_limit_memory(node.uuid, node.top) is None


def test_asking_leaves_a_limit_that_is_there_as_it_is(node: Node) -> None:
    node.session.set_memory_limit(node.uuid, node.top, 20 * GIB)
    assert node.session.can_limit_memory(node.uuid, node.top) is None
    assert node.session.memory_limit(node.uuid, node.top) == 20 * GIB


def test_a_gpu_in_mig_mode_cannot_be_limited_and_can_be_again(node: Node) -> None:
    assert node.session.can_limit_memory(node.uuid, node.top) is None
    on = Machine(node.machine.driver_root)
    assert node.session.close()
    on.set_mig_mode(node.uuid, enabled=True)
    node.session.look()
    assert "MIG mode" in node.obstacle()
    assert node.session.close()
    on.set_mig_mode(node.uuid, enabled=False)
    node.session.look()
    assert node.session.can_limit_memory(node.uuid, node.top) is None


def test_without_cgroup_v2_nothing_can_be_limited(node: Node) -> None:
    found = node.session.can_limit_memory(node.uuid, None)
    assert found is not None
    assert "no control groups of cgroup v2" in found


@pytest.mark.parametrize("driver", ["535.261.03", "610.57.04"])
def test_an_older_driver_cannot_limit_memory(tmp_path: Path, driver: str) -> None:
    node = Node(tmp_path, "off", driver)
    try:
        assert node.obstacle() == f"the GPU driver {driver} is older than R615"
        with pytest.raises(DeviceError, match="older than R615"):
            node.session.set_memory_limit(node.uuid, node.top, GIB)
    finally:
        node.session.close()


def test_a_driver_with_limits_disabled_is_noticed(tmp_path: Path) -> None:
    node = Node(tmp_path, "off", "615.71.09")
    try:
        assert "the GPU driver does not limit memory there" in node.obstacle()
    finally:
        node.session.close()


@pytest.mark.parametrize(
    ("wanted", "found", "is_met"),
    [
        (GIB, GIB, True),
        (GIB + 1, GIB, True),
        (GIB, GIB + 1, False),
        (GIB + MIB, GIB, False),
        (GIB, None, False),
        (None, None, True),
        (None, GIB, False),
    ],
)
def test_a_limit_may_be_rounded_down_and_no_further(
    wanted: int | None, found: int | None, is_met: bool
) -> None:
    assert memory_limits._is_met(wanted, found) is is_met
