"""A GPU hangs in a MIG call of a claim: that claim hears of it in time, and nobody else waits."""

import time
from collections.abc import Iterator

import pytest

from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from dra_driver.errors import SilenceError
from worlds.node import MakeNode, Node

HANG_MS = 600_000
DOES_NOT_ANSWER = "GPU 0 has not answered since 20"

MAKING = (
    "nvmlDeviceGetMigMode",
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
)
UNMAKING = ("nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy", "nvmlDeviceGetGpuInstances")


@pytest.fixture
def node(make_node: MakeNode) -> Iterator[Node]:
    node = make_node()
    node.calls.answer_seconds = 2.0
    yield node
    wait_until_it_answers(node)


def wait_until_it_answers(node: Node) -> None:
    node.machine.clear_faults()
    end = time.monotonic() + 60
    while node.calls.silent:
        assert time.monotonic() < end
        time.sleep(0.05)


def hang(node: Node, function: str) -> None:
    node.machine.slow_call(function, HANG_MS, uuid=node.uuid(0), times=1)


def check_that_nobody_else_waits(node: Node) -> None:
    other = node.claim(node.name("1g.10gb", 0, minor=1), name="other")
    with node.driver.locks.gpus([node.uuid(0)], time.monotonic()):
        node.driver.prepare(other)
        assert node.calls.silent, "all of this was while the GPU hung"
    node.driver.unprepare(other)
    assert [sick.index for sick in node.session.look().sick] == [0]


def check_that_all_is_mended(node: Node) -> None:
    wait_until_it_answers(node)
    node.look()
    assert len(node.inventory.gpus) == 8
    assert node.driver.reconciler(ReconcileTiming()).mend() == set()
    assert node.left() == []


@pytest.mark.parametrize("function", MAKING)
def test_a_claim_whose_mig_device_is_late_fails_with_the_reason(node: Node, function: str) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    hang(node, function)
    with pytest.raises(SilenceError, match=DOES_NOT_ANSWER):
        node.driver.prepare(ref)
    check_that_nobody_else_waits(node)
    wait_until_it_answers(node)
    node.driver.prepare(ref)
    assert node.mig_shapes() == {0: ["1g.10gb@0"]}
    node.driver.unprepare(ref)
    check_that_all_is_mended(node)


@pytest.mark.parametrize("function", UNMAKING)
def test_a_claim_whose_mig_device_cannot_be_destroyed_in_time_is_unprepared(
    node: Node, function: str
) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    node.driver.prepare(ref)
    hang(node, function)
    node.driver.unprepare(ref)
    left = node.driver.cleanups(ref)
    assert [name for name, _ in left] == ["MIG", "MIG"], "the mode, and the device"
    assert all(DOES_NOT_ANSWER in reason for _, reason in left)
    check_that_nobody_else_waits(node)
    check_that_all_is_mended(node)


def test_a_device_made_after_the_timeout_is_removed(node: Node) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    hang(node, "nvmlDeviceCreateGpuInstanceWithPlacement")
    with pytest.raises(SilenceError):
        node.driver.prepare(ref)
    assert [name for name, _ in node.driver.cleanups(ref)] == ["MIG", "MIG"]
    node.driver.unprepare(ref)
    check_that_all_is_mended(node)
