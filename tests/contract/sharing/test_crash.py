"""Supervisor or daemon killed at any step: the claim is prepared or unprepared all the same."""

import os
import signal
import threading

import pytest

from dra_driver.mps import processes
from dra_driver.mps.domain import DomainId
from worlds import child
from worlds.configs import HALF, PATIENCE
from worlds.node import Node

HALF_OF_ONE = {"a": HALF}


@pytest.mark.parametrize("step", ["begun", "mounted", "modes set", "launched", "served"])
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


@pytest.mark.parametrize("step", ["launched", "recorded", "served"])
def test_a_claim_is_prepared_although_its_daemon_is_killed_on_the_way(
    node: Node, step: str
) -> None:
    killed: list[str] = []
    ref = node.claim_gpus(HALF_OF_ONE)

    def kill(name: str) -> None:
        if name == step and not killed:
            killed.append(name)
            folder = node.mps.files.paths(DomainId(ref.uid)).folder
            assert processes.kill(processes.marked(folder), PATIENCE)

    with node.mps.supervised(kill):
        node.driver.prepare(ref)
        assert killed == [step]
        domain = node.mps.requests.desired(DomainId(ref.uid))
        assert domain is not None
        node.mps.until(domain, lambda status: status.restarts == 1 or step != "served")
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
