"""Killed at any step, a supervisor is followed by one that goes on, and nothing leaks."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from multiprocessing.context import ForkServerProcess

import pytest

from dra_driver.mps import processes
from dra_driver.mps.domain import Domain
from dra_driver.mps.supervisor.supervisor import Supervisor
from worlds import child
from worlds.configs import PATIENCE
from worlds.mps import MpsDomains
from worlds.process import eventually

Run = Callable[[AbstractContextManager[Supervisor]], Supervisor]
Start = Callable[[str], ForkServerProcess]

NEVER = "never"
UP = (
    "begun", "cleared", "folders made", "mounted", "modes recorded", "modes set", "launched",
    "recorded", "served", "reported",
)  # fmt: skip
DOWN = ("stopping", "quit", "unmounting", "unmounting:2", "unmounted", "removed")
WITH_A_DAEMON = UP[UP.index("launched") :]


@pytest.fixture
def start(mps: MpsDomains) -> Iterator[Start]:
    """Start a supervisor that is killed at a step; the one who asked waits for that."""
    children: list[ForkServerProcess] = []

    def run_until(at: str) -> ForkServerProcess:
        process = child.fork("supervise", mps.root, at)
        children.append(process)
        return process

    yield run_until
    for process in children:
        process.kill()
        process.join(PATIENCE)
        process.close()


def daemons(mps: MpsDomains, domain: Domain) -> list[processes.Daemon]:
    return processes.marked(mps.files.paths(domain.id).folder)


@pytest.mark.parametrize("step", UP)
def test_killed_while_a_domain_comes_up_the_next_completes_it(
    mps: MpsDomains, start: Start, run: Run, step: str
) -> None:
    domain = mps.domain("claim", 0, 1, limits=(1024, 2048), active_thread_percentage=30)
    mps.requests.write_desired(domain)
    assert child.was_killed(start(step))
    before = daemons(mps, domain)
    assert bool(before) == (step in WITH_A_DAEMON)

    run(mps.supervised())
    status = mps.ready(domain)

    assert daemons(mps, domain) == [status.daemon]
    assert before in ([], [status.daemon])
    assert status.restarts == 0
    assert status.active_thread_percentage == 30.0
    mps.gone(domain)
    assert mps.left(domain) == []


@pytest.mark.parametrize("step", UP)
def test_a_kill_during_the_start_of_an_unwanted_domain_leaves_nothing(
    mps: MpsDomains, start: Start, run: Run, step: str
) -> None:
    domain = mps.domain("claim", 0)
    mps.requests.write_desired(domain)
    assert child.was_killed(start(step))
    mps.requests.remove(domain.id)
    run(mps.supervised())
    eventually(mps.supervisor_runs, "the supervisor to run")
    mps.requests.wait_gone(domain.id, time.monotonic() + PATIENCE)
    assert mps.left(domain) == []


@pytest.mark.parametrize("step", DOWN)
def test_killed_while_a_domain_goes_the_next_finishes(
    mps: MpsDomains, start: Start, run: Run, step: str
) -> None:
    domain = mps.domain("claim", 0)
    process = start(step)
    mps.ready(domain)
    mps.requests.remove(domain.id)
    assert child.was_killed(process)
    run(mps.supervised())
    eventually(mps.supervisor_runs, "the supervisor to run")
    mps.requests.wait_gone(domain.id, time.monotonic() + PATIENCE)
    assert mps.left(domain) == []


def test_killed_while_it_replaces_a_dead_daemon_the_next_does_so_once(
    mps: MpsDomains, start: Start, run: Run
) -> None:
    process = start("death recorded")
    domain = mps.domain("claim", 0)
    daemon = mps.ready(domain).daemon
    assert daemon is not None
    os.kill(daemon.pid, signal.SIGKILL)
    assert child.was_killed(process)
    run(mps.supervised())
    status = mps.ready(domain)
    assert status.restarts == 1
    assert daemons(mps, domain) == [status.daemon]
    mps.gone(domain)
    assert mps.left(domain) == []


def test_killed_with_its_daemons_at_work_they_go_on_and_are_adopted(
    mps: MpsDomains, start: Start, run: Run
) -> None:
    process = start(NEVER)
    steady, struck = mps.domain("steady", 0), mps.domain("struck", 1)
    before, doomed = mps.ready(steady), mps.ready(struck)
    process.kill()
    process.join(PATIENCE)
    assert not mps.supervisor_runs()
    assert mps.ask(steady.id, "get_default_active_thread_percentage") == ["100.0"]
    assert doomed.daemon is not None
    os.kill(doomed.daemon.pid, signal.SIGKILL)

    run(mps.supervised())

    after = mps.until(steady, lambda status: status.supervisor != before.supervisor)
    assert (after.daemon, after.restarts) == (before.daemon, 0)
    replaced = mps.until(
        struck, lambda now: now.supervisor != before.supervisor and now.state == "ready"
    )
    assert replaced.restarts == 1
    # An adopted daemon is watched like one of its own.
    assert after.daemon is not None
    os.kill(after.daemon.pid, signal.SIGKILL)
    mps.until(steady, lambda status: status.restarts == 1 and status.state == "ready")
    for domain in (steady, struck):
        mps.gone(domain)
        assert mps.left(domain) == []
