"""Processes are told apart even when a PID is reused."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.mps import processes
from dra_driver.mps.domain import Daemon

PATIENCE = 30.0


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(["/bin/sleep", "600"], env={"WHO": "me=you"})
    # A program's start is told to its parent a moment before its environment can be read.
    environment, end = Path(f"/proc/{process.pid}/environ"), time.monotonic() + PATIENCE
    while not environment.read_bytes() and time.monotonic() < end:
        time.sleep(0.001)
    yield process
    process.kill()
    process.wait(PATIENCE)


def test_a_process_is_identified_by_pid_and_start_time(child: "subprocess.Popen[bytes]") -> None:
    daemon = processes.daemon_at(child.pid)
    assert daemon is not None
    assert processes.is_alive(daemon)
    assert not processes.is_alive(Daemon(pid=child.pid, start_ticks=daemon.start_ticks + 1))
    assert processes.environment_of(child.pid) == {"WHO": "me=you"}
    assert not processes.wait_for_end(daemon, 0.0)


def test_a_stranger_with_the_same_pid_is_not_killed(child: "subprocess.Popen[bytes]") -> None:
    stranger = Daemon(pid=child.pid, start_ticks=1)
    assert processes.kill([stranger], PATIENCE)
    assert processes.wait_for_end(stranger, PATIENCE)
    assert child.poll() is None


def test_a_killed_process_is_gone_also_while_nobody_has_reaped_it(
    child: "subprocess.Popen[bytes]",
) -> None:
    daemon = processes.daemon_at(child.pid)
    assert daemon is not None
    os.kill(child.pid, signal.SIGKILL)
    assert processes.wait_for_end(daemon, PATIENCE)
    assert not processes.is_alive(daemon)


def test_a_process_that_was_reaped_has_ended() -> None:
    process = subprocess.Popen(["/bin/true"])
    process.wait(PATIENCE)
    gone = Daemon(pid=process.pid, start_ticks=0)
    assert not processes.is_alive(gone)
    assert processes.wait_for_end(gone, PATIENCE)
    assert processes.kill([gone], PATIENCE)
    assert processes.environment_of(process.pid) == {}


def test_nobody_listens_in_a_folder_without_a_socket(tmp_path: Path) -> None:
    assert processes.listener(tmp_path, "control_privileged") is None
    assert processes.listener(tmp_path / "absent", "control_privileged") is None
    (tmp_path / "control_privileged").touch()
    assert processes.listener(tmp_path, "control_privileged") is None


def test_no_process_has_the_mark_of_an_unknown_domain(tmp_path: Path) -> None:
    assert processes.marked(tmp_path) == []
