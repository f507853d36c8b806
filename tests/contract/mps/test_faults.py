"""A daemon whose server is in FAULT, or that does not answer, played by a script around the real
program: NVIDIA's server does not run without a GPU."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

import pytest
import structlog

from dra_driver.errors import DeviceError
from dra_driver.mps import processes
from dra_driver.mps.daemon.health import WorkerTiming
from dra_driver.mps.domain import DomainId, State
from dra_driver.mps.supervisor.supervisor import Supervisor
from worlds.configs import PATIENCE
from worlds.mps import MpsDomains
from worlds.process import eventually

Run = Callable[[AbstractContextManager[Supervisor]], Supervisor]

NEVER = 3600.0
QUICK = WorkerTiming(
    first_retry=0.02,
    longest_retry=0.1,
    check_interval=0.1,
    settled=0.0,
    unhealthy_interval=0.05,
    replace_after=NEVER,
)
SERVER = "4242"
ACTIVE, FAULT = "ACTIVE", "FAULT"


@pytest.fixture
def say(mps: MpsDomains) -> Callable[[str], None]:
    """Sets what the daemon says of its one server."""
    said = mps.root / "server-status"
    said.write_text(ACTIVE + "\n")
    mps.wrap_control(
        f"""
[ "$#" = 0 ] || exec $REAL "$@"
read -r command
case "$command" in
get_server_list) echo {SERVER}; echo 100.0 ;;
"get_server_status {SERVER}") read -r status <{said}; echo "$status" ;;
*) {{ printf '%s\\n' "$command"; while read -r line; do printf '%s\\n' "$line"; done; }} | $REAL ;;
esac
"""
    )

    def set_status(status: str) -> None:
        made = said.with_name("server-status.new")
        made.write_text(status + "\n")
        made.replace(said)

    return set_status


def test_a_faulted_server_is_reported_until_it_recovers(
    mps: MpsDomains, run: Run, say: Callable[[str], None]
) -> None:
    run(mps.supervised(timing=QUICK))
    domain = mps.domain("claim", 0)
    daemon = mps.ready(domain).daemon
    say(FAULT)
    status = mps.until(domain, lambda status: status.state is State.FAULTED)
    assert f"the MPS server (PID {SERVER}) is in state FAULT" in status.reason
    assert (status.daemon, status.restarts) == (daemon, 0)
    with pytest.raises(DeviceError, match=r"is not ready yet: the MPS server .* restart the pods"):
        mps.requests.wait_ready(domain, time.monotonic())
    say(ACTIVE)
    assert mps.ready(domain).daemon == daemon
    mps.gone(domain)
    assert mps.left(domain) == []


def test_a_daemon_whose_server_stays_in_fault_is_replaced_and_its_death_counted(
    mps: MpsDomains, run: Run, say: Callable[[str], None]
) -> None:
    deaths: list[str] = []
    beside: list[processes.Daemon] = []

    def step(name: str) -> None:
        if name == "given up":
            say(ACTIVE)
            deaths.append(name)
            beside.extend(processes.marked(mps.files.paths(DomainId("claim")).folder))

    timing = WorkerTiming(
        first_retry=0.02,
        check_interval=0.1,
        settled=0.0,
        unhealthy_interval=0.05,
        replace_after=0.2,
    )
    run(mps.supervised(step, timing))
    domain = mps.domain("claim", 0, active_thread_percentage=50)
    before = mps.ready(domain).daemon
    assert before is not None
    server = mps.server(domain)
    say(FAULT)
    after = mps.until(domain, lambda status: bool(status.restarts) and status.state is State.READY)
    assert after.daemon not in (before, None)
    assert after.restarts == 1
    assert after.active_thread_percentage == 50.0
    assert deaths == ["given up"]
    assert beside == []
    server.wait(PATIENCE)
    assert not processes.is_alive(before)
    mps.gone(domain)
    assert mps.left(domain) == []


def test_a_daemon_that_does_not_answer_is_replaced(mps: MpsDomains, run: Run) -> None:
    timing = WorkerTiming(
        first_retry=0.02, longest_retry=0.1, check_interval=0.1, settled=0.0, replace_after=0.2
    )
    run(mps.supervised(timing=timing))
    domain = mps.domain("claim", 0)
    before = mps.ready(domain).daemon
    assert before is not None
    # As a daemon is seen that hangs, without the seconds that each question to it then takes.
    mps.wrap_control(
        f'[ "$#" = 0 ] || exec $REAL "$@"; [ -e /proc/{before.pid} ] && exit 1; exec $REAL'
    )
    os.kill(before.pid, signal.SIGSTOP)
    try:
        after = mps.until(domain, lambda now: bool(now.restarts) and now.state is State.READY)
    finally:
        with suppress(ProcessLookupError):
            os.kill(before.pid, signal.SIGCONT)
    assert after.daemon not in (before, None)
    mps.gone(domain)
    assert mps.left(domain) == []


@pytest.mark.parametrize("status", [1, 0], ids=["turned away", "answered with nothing"])
def test_a_daemon_that_is_busy_once_stays_ready(mps: MpsDomains, run: Run, status: int) -> None:
    timing = WorkerTiming(first_retry=0.02, check_interval=0.05, settled=0.0, replace_after=NEVER)
    run(mps.supervised(timing=timing))
    domain = mps.domain("claim", 0)
    first = mps.ready(domain)
    asked = mps.root / "asked"
    with structlog.testing.capture_logs() as said:
        # The first question is not answered, and all that follow are.
        mps.wrap_control(
            f'if [ "$#" = 0 ]; then [ -e {asked} ]; known=$?; echo question >>{asked}; '
            f'[ $known = 0 ] || exit {status}; fi; exec $REAL "$@"'
        )
        eventually(lambda: asked.exists() and asked.read_text().count("\n") > 5, "more checks")
    assert said == []
    assert mps.requests.status(domain.id) == first
