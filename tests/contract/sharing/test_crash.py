"""Driver, supervisor or daemon killed at any step: the next call converges, nothing leaks."""

import os
import signal
import threading
from itertools import product

import pytest

from crashes import deaths
from dra_driver.claims.model.record import RecordState
from dra_driver.claims.reconcile.orphans import ReconcileTiming
from dra_driver.mps import processes
from dra_driver.mps.domain import DomainId
from worlds import child
from worlds.configs import HALF, PATIENCE, REQUESTS
from worlds.node import Node

PREPARE_STEPS = ["marked", "intended", "applied", "recorded", "described", "specified"]
HALF_OF_ONE = {"a": HALF}
MIG_PREPARE_STEPS = [
    "marked",
    "intended",
    "made",
    "intended:2",
    "applied",
    "recorded",
    "described",
    "specified",
]
UNPREPARE_STEPS = ["undone", "unspecified", "forgotten"]
HERE = "tests/contract/sharing/test_crash.py"
NEXTS = ("unprepare", "mend", "prepare")


def kill_at(node: Node, mode: str, call: str, step: str) -> None:
    """Let a driver process of its own make a call, and be killed at a step of it."""
    assert node.session.close()  # two drivers with NVML open keep each other from MIG modes
    assert child.was_killed(child.fork("die_on_node", node.root, mode, call, step))
    node.look()


def check_hardware(node: Node, mode: str) -> None:
    """Check that the GPUs are set as a prepared claim's requests ask for."""
    assert list(node.time_slices().values()) == [3] * (mode != "mps")
    assert list(node.compute_modes().values()) == [3] * (mode != "time-slicing")


@pytest.mark.parametrize(
    ("mode", "step", "after"),
    deaths(HERE, [*product(REQUESTS, PREPARE_STEPS)], ("prepare", "mend")),
)
def test_a_driver_killed_in_prepare_completes_it_next_time_or_leaves_all_or_nothing_at_its_start(
    node: Node, mode: str, step: str, after: str
) -> None:
    with node.mps.supervised():
        kill_at(node, mode, "prepare", step)
        ref = node.claim_gpus(REQUESTS[mode])
        if after == "prepare":
            node.driver.prepare(ref)
        else:
            assert node.driver.reconciler(ReconcileTiming()).mend() == set()
        record = node.driver.claims.records.read(ref.uid)
        if record is None:
            assert after == "mend"
            assert (node.time_slices(), node.compute_modes()) == ({}, {})
        else:
            assert record.state is RecordState.PREPARED
            assert node.driver.specs.exists(ref.uid)
            check_hardware(node, mode)
        node.driver.unprepare(ref)
        other = node.claim_gpus(dict.fromkeys(REQUESTS[mode]), name="other")
        node.driver.prepare(other)
        assert (node.time_slices(), node.compute_modes()) == ({}, {})
        node.driver.unprepare(other)
        assert node.left() == []


@pytest.mark.parametrize(
    ("mode", "step", "after"), deaths(HERE, [*product(REQUESTS, UNPREPARE_STEPS)], NEXTS)
)
def test_a_driver_killed_in_unprepare_leaves_nothing_in_the_end(
    node: Node, mode: str, step: str, after: str
) -> None:
    with node.mps.supervised():
        ref = node.claim_gpus(REQUESTS[mode])
        node.driver.prepare(ref)
        kill_at(node, mode, "unprepare", step)
        if after == "mend":
            assert node.driver.reconciler(ReconcileTiming()).mend() == set()
        elif after == "prepare":
            node.driver.prepare(ref)
            check_hardware(node, mode)
        node.driver.unprepare(ref)
        other = node.claim_gpus(dict.fromkeys(REQUESTS[mode]), name="other")
        node.driver.prepare(other)
        assert (node.time_slices(), node.compute_modes()) == ({}, {})
        node.driver.unprepare(other)
        assert node.left() == []


@pytest.mark.parametrize(
    ("call", "step", "after"),
    deaths(
        HERE,
        [("prepare", step) for step in PREPARE_STEPS]
        + [("unprepare", step) for step in UNPREPARE_STEPS],
        NEXTS,
    ),
)
def test_the_time_slice_of_an_admin_outlasts_a_driver_that_is_killed(
    node: Node, call: str, step: str, after: str
) -> None:
    admins = dict.fromkeys(range(2), 2)
    for minor, number in admins.items():
        node.set_time_slice(minor, number)
    ref = node.claim_gpus(REQUESTS["time-slicing"])
    if call == "unprepare":
        node.driver.prepare(ref)
    kill_at(node, "time-slicing", call, step)
    if after == "mend":
        assert node.driver.reconciler(ReconcileTiming()).mend() == set()
    elif after == "prepare":
        node.driver.prepare(ref)
        assert 3 in node.time_slices().values()
    node.driver.unprepare(ref)
    assert node.time_slices() == admins


@pytest.mark.parametrize(
    ("step", "after"), deaths(HERE, [(step,) for step in MIG_PREPARE_STEPS], NEXTS)
)
def test_a_driver_killed_in_prepare_of_mig_devices_under_mps_converges(
    node: Node, step: str, after: str
) -> None:
    with node.mps.supervised():
        kill_at(node, "mig", "prepare", step)
        ref = node.claim_migs(0, 1)
        if after == "mend":
            assert node.driver.reconciler(ReconcileTiming()).mend() == set()
            assert len(node.migs()) in (0, 2)
            assert len(node.mps.requests.list()) == len(node.migs())
        elif after == "prepare":
            node.driver.prepare(ref)
            assert len(node.migs()) == 2
            for number in range(2):
                domain = DomainId(f"{ref.uid}_mig_{number}")
                percentage = "get_default_active_thread_percentage"
                assert node.mps.ask(domain, percentage) == ["50.0"]
        node.driver.unprepare(ref)
        assert (node.migs(), node.left()) == ([], [])


@pytest.mark.parametrize(
    ("step", "after"), deaths(HERE, [(step,) for step in UNPREPARE_STEPS], NEXTS)
)
def test_a_driver_killed_in_unprepare_of_mig_devices_under_mps_converges(
    node: Node, step: str, after: str
) -> None:
    with node.mps.supervised():
        ref = node.claim_migs(0, 1)
        node.driver.prepare(ref)
        kill_at(node, "mig", "unprepare", step)
        if after == "mend":
            assert node.driver.reconciler(ReconcileTiming()).mend() == set()
        elif after == "prepare":
            node.driver.prepare(ref)
            assert len(node.migs()) == 2
            assert len(node.mps.requests.list()) == 2
        node.driver.unprepare(ref)
        assert (node.migs(), node.left()) == ([], [])


@pytest.mark.parametrize("step", ["begun", "mounted", "modes set", "launched", "limited"])
def test_a_claim_is_prepared_although_the_supervisor_is_killed_on_the_way(
    node: Node, step: str
) -> None:
    process = child.fork("supervise", node.root, step)
    ref = node.claim_gpus(HALF_OF_ONE)
    call = threading.Thread(target=node.driver.prepare, args=[ref], name="prepare")
    call.start()
    assert child.was_killed(process)
    with node.mps.supervised():
        call.join(PATIENCE)
        assert not call.is_alive()
        assert node.ask(ref, "get_default_active_thread_percentage") == ["50.0"]
        node.driver.unprepare(ref)
        assert node.left() == []


@pytest.mark.parametrize("step", ["launched", "recorded", "limited"])
def test_a_claim_is_prepared_although_its_daemon_is_killed_on_the_way(
    node: Node, step: str
) -> None:
    killed: list[str] = []

    def kill(domain: str, name: str) -> None:
        if name == step and not killed:
            killed.append(name)
            folder = node.mps.files.paths(DomainId(domain)).folder
            assert processes.kill(processes.marked(folder), PATIENCE)

    with node.mps.supervised(kill):
        ref = node.claim_gpus(HALF_OF_ONE)
        node.driver.prepare(ref)
        assert killed == [step]
        domain = node.mps.requests.desired(DomainId(ref.uid))
        assert domain is not None
        node.mps.until(domain, lambda status: status.restarts == 1 or step != "limited")
        node.driver.prepare(ref)
        assert node.ask(ref, "get_default_active_thread_percentage") == ["50.0"]
        node.driver.unprepare(ref)
        assert node.left() == []


def test_a_claim_is_unprepared_although_its_daemon_is_dead(node: Node) -> None:
    ref = node.claim_gpus(HALF_OF_ONE)
    with node.mps.supervised():
        node.driver.prepare(ref)
    for daemon in processes.marked(node.mps.files.paths(DomainId(ref.uid)).folder):
        os.kill(daemon.pid, signal.SIGKILL)
    with node.mps.supervised():
        node.driver.unprepare(ref)
        assert node.left() == []
