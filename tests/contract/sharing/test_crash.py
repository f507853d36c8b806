"""Driver, supervisor or daemon killed at any step: the next call converges, nothing leaks."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from dra_driver.claims.reconcile import ReconcileTiming
from dra_driver.claims.record import RecordState
from dra_driver.mps import processes
from dra_driver.mps.domain import DomainId
from mps_world import PATIENCE
from sharing_world import HALF, REQUESTS, Node

Supervised = Callable[..., AbstractContextManager[None]]

CHILD = Path(__file__).with_name("child.py")
PREPARE_STEPS = ["marked", "intended", "applied", "recorded", "specified"]
HALF_OF_ONE = {"a": HALF}
MIG_PREPARE_STEPS = [
    "marked",
    "intended",
    "made",
    "intended:2",
    "applied",
    "recorded",
    "specified",
]
UNPREPARE_STEPS = ["undone", "unspecified", "forgotten"]


def kill_at(node: Node, mode: str, call: str, step: str) -> None:
    """Let a driver process of its own make a call, and be killed at a step of it."""
    done = subprocess.run([sys.executable, CHILD, node.root, mode, call, step], check=False)
    assert done.returncode == -signal.SIGKILL


def check_hardware(node: Node, mode: str) -> None:
    """Check that the GPUs are set as a prepared claim's requests ask for."""
    assert list(node.time_slices().values()) == [3] * (mode != "mps")
    assert list(node.modes().values()) == [3] * (mode != "time-slicing")


@pytest.mark.parametrize("mode", REQUESTS)
@pytest.mark.parametrize("step", PREPARE_STEPS)
def test_a_driver_killed_in_prepare_completes_it_next_time(
    node: Node, supervised: Supervised, mode: str, step: str
) -> None:
    with supervised(node):
        kill_at(node, mode, "prepare", step)
        ref = node.claim(REQUESTS[mode])
        node.prepare(ref)
        check_hardware(node, mode)
        node.unprepare(ref)
        assert node.left() == []


@pytest.mark.parametrize("mode", REQUESTS)
@pytest.mark.parametrize("step", PREPARE_STEPS)
def test_a_driver_killed_in_prepare_leaves_all_or_nothing_at_its_next_start(
    node: Node, supervised: Supervised, mode: str, step: str
) -> None:
    with supervised(node):
        kill_at(node, mode, "prepare", step)
        assert node.world.reconciler(ReconcileTiming()).mend() == set()
        ref = node.claim(REQUESTS[mode])
        record = node.world.claims.records.read(ref.uid)
        if record is None:
            assert (node.time_slices(), node.modes()) == ({}, {})
        else:
            assert record.state is RecordState.PREPARED
            assert node.world.specs.exists(ref.uid)
            check_hardware(node, mode)
        node.unprepare(ref)
        other = node.claim(dict.fromkeys(REQUESTS[mode]), name="other")
        node.prepare(other)
        assert (node.time_slices(), node.modes()) == ({}, {})
        node.unprepare(other)
        assert node.left() == []


@pytest.mark.parametrize("mode", REQUESTS)
@pytest.mark.parametrize("step", UNPREPARE_STEPS)
@pytest.mark.parametrize("after", ["unprepare", "mend", "prepare"])
def test_a_driver_killed_in_unprepare_leaves_nothing_in_the_end(
    node: Node, supervised: Supervised, mode: str, step: str, after: str
) -> None:
    with supervised(node):
        ref = node.claim(REQUESTS[mode])
        node.prepare(ref)
        kill_at(node, mode, "unprepare", step)
        if after == "mend":
            assert node.world.reconciler(ReconcileTiming()).mend() == set()
        elif after == "prepare":
            node.prepare(ref)
            check_hardware(node, mode)
        node.unprepare(ref)
        other = node.claim(dict.fromkeys(REQUESTS[mode]), name="other")
        node.prepare(other)
        assert (node.time_slices(), node.modes()) == ({}, {})
        node.unprepare(other)
        assert node.left() == []


@pytest.mark.parametrize("step", MIG_PREPARE_STEPS)
@pytest.mark.parametrize("after", ["prepare", "mend", "unprepare"])
def test_a_driver_killed_in_prepare_of_mig_devices_under_mps_converges(
    node: Node, supervised: Supervised, step: str, after: str
) -> None:
    with supervised(node):
        kill_at(node, "mig", "prepare", step)
        ref = node.mig_claim(0, 1)
        if after == "mend":
            assert node.world.reconciler(ReconcileTiming()).mend() == set()
            assert node.instances() in (0, 2)
            assert len(node.mps.requests.list()) == node.instances()
        elif after == "prepare":
            node.prepare(ref)
            assert node.instances() == 2
            for number in range(2):
                paths = node.mps.files.paths(DomainId(f"{ref.uid}_mig_{number}"))
                percentage = "get_default_active_thread_percentage"
                assert node.mps.control.ask(paths, [percentage]) == ["50.0"]
        node.unprepare(ref)
        assert (node.instances(), node.left()) == (0, [])


@pytest.mark.parametrize("step", UNPREPARE_STEPS)
@pytest.mark.parametrize("after", ["unprepare", "mend", "prepare"])
def test_a_driver_killed_in_unprepare_of_mig_devices_under_mps_converges(
    node: Node, supervised: Supervised, step: str, after: str
) -> None:
    with supervised(node):
        ref = node.mig_claim(0, 1)
        node.prepare(ref)
        kill_at(node, "mig", "unprepare", step)
        if after == "mend":
            assert node.world.reconciler(ReconcileTiming()).mend() == set()
        elif after == "prepare":
            node.prepare(ref)
            assert node.instances() == 2
            assert len(node.mps.requests.list()) == 2
        node.unprepare(ref)
        assert (node.instances(), node.left()) == (0, [])


@pytest.mark.parametrize("step", ["begun", "mounted", "modes set", "launched", "limited"])
def test_a_claim_is_prepared_although_the_supervisor_is_killed_on_the_way(
    node: Node, supervised: Supervised, step: str
) -> None:
    supervisor = Path(__file__).parents[1] / "mps" / "child.py"
    process = subprocess.Popen(
        [sys.executable, supervisor, node.root, step], stdout=subprocess.DEVNULL
    )
    ref = node.claim(HALF_OF_ONE)
    call = threading.Thread(target=node.prepare, args=[ref], name="prepare")
    call.start()
    assert process.wait(PATIENCE) == -signal.SIGKILL
    with supervised(node):
        call.join(PATIENCE)
        assert not call.is_alive()
        assert node.ask(ref, "get_default_active_thread_percentage") == ["50.0"]
        node.unprepare(ref)
        assert node.left() == []


@pytest.mark.parametrize("step", ["launched", "recorded", "limited"])
def test_a_claim_is_prepared_although_its_daemon_is_killed_on_the_way(
    node: Node, supervised: Supervised, step: str
) -> None:
    killed: list[str] = []

    def kill(domain: str, name: str) -> None:
        if name == step and not killed:
            killed.append(name)
            folder = node.mps.files.paths(DomainId(domain)).folder
            assert processes.kill(processes.marked(folder), PATIENCE)

    with supervised(node, kill):
        ref = node.claim(HALF_OF_ONE)
        node.prepare(ref)
        assert killed == [step]
        domain = node.mps.requests.desired(DomainId(ref.uid))
        assert domain is not None
        node.mps.until(domain, lambda status: status.restarts == 1 or step != "limited")
        node.prepare(ref)
        assert node.ask(ref, "get_default_active_thread_percentage") == ["50.0"]
        node.unprepare(ref)
        assert node.left() == []


def test_a_claim_is_unprepared_although_its_daemon_is_dead(
    node: Node, supervised: Supervised
) -> None:
    ref = node.claim(HALF_OF_ONE)
    with supervised(node):
        node.prepare(ref)
    for daemon in processes.marked(node.mps.files.paths(DomainId(ref.uid)).folder):
        os.kill(daemon.pid, signal.SIGKILL)
    with supervised(node):
        node.unprepare(ref)
        assert node.left() == []
