"""The control group that daemons are moved to."""

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from dra_driver.admin.cleanup import group_folders
from dra_driver.errors import DeviceError
from dra_driver.mps import processes
from dra_driver.mps.domain import Daemon
from dra_driver.mps.supervisor.cgroup import GROUP, DaemonGroup

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


def this_process() -> Daemon:
    daemon = processes.daemon_at(os.getpid())
    assert daemon is not None
    return daemon


def test_a_daemon_is_moved_in_every_hierarchy_of_cgroup_v1(tmp_path: Path) -> None:
    for name in ("devices", "cpuset"):
        (tmp_path / name / GROUP).mkdir(parents=True)
        (tmp_path / name / "cgroup.procs").touch()
    (tmp_path / "link").symlink_to("devices")
    (tmp_path / "cpuset/cpuset.cpus").write_text("0-1\n")
    (tmp_path / "cpuset" / GROUP / "cpuset.cpus").write_text("\n")
    DaemonGroup(tmp_path).take(this_process())
    assert (tmp_path / "devices" / GROUP / "cgroup.procs").read_text() == f"{os.getpid()}\n"
    assert (tmp_path / "cpuset" / GROUP / "cgroup.procs").read_text() == f"{os.getpid()}\n"
    assert (tmp_path / "cpuset" / GROUP / "cpuset.cpus").read_text() == "0-1\n"


@pytest.mark.parametrize("folder", ["nothing", "empty"])
def test_where_no_control_groups_are_mounted_the_reason_says_so(
    tmp_path: Path, folder: str
) -> None:
    (tmp_path / "empty/not-a-hierarchy").mkdir(parents=True)
    with pytest.raises(DeviceError, match="mount the host's /sys/fs/cgroup there"):
        DaemonGroup(tmp_path / folder).take(this_process())


def test_the_group_is_found_in_every_hierarchy_that_has_it(tmp_path: Path) -> None:
    for name in ("cpu", "memory"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    assert group_folders(tmp_path) == []
    (tmp_path / "cpu" / GROUP).mkdir()
    assert group_folders(tmp_path) == [tmp_path / "cpu" / GROUP]
    assert group_folders(tmp_path / "nothing") == []


def test_a_process_that_only_has_a_daemons_pid_is_not_moved(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").touch()
    DaemonGroup(tmp_path).take(Daemon(pid=os.getpid(), start_ticks=1))
    assert not (tmp_path / GROUP).exists()


@pytest.mark.skipif(not os.access(LAST_PID, os.W_OK), reason="needs root, to choose a PID")
def test_a_process_that_got_a_daemons_pid_during_the_move_is_ended(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / GROUP).mkdir()
    os.mkfifo(tmp_path / GROUP / "cgroup.procs")  # the move waits until it is read
    first = subprocess.Popen(["/bin/sleep", "600"])
    daemon = processes.daemon_at(first.pid)
    assert daemon is not None
    move = threading.Thread(target=DaemonGroup(tmp_path).take, args=(daemon,))
    move.start()
    time.sleep(0.2)  # it has looked at the daemon, and is about to write
    first.kill()
    first.wait()
    stranger = with_pid(daemon.pid)
    assert (tmp_path / GROUP / "cgroup.procs").read_text() == f"{daemon.pid}\n"
    move.join()
    if stranger is None:
        pytest.skip("another process got the PID")
    stranger.wait(30.0)  # long before it would end by itself


def with_pid(pid: int) -> "subprocess.Popen[bytes] | None":
    """Start a process that gets this PID, unless others are quicker each time."""
    for _ in range(20):
        LAST_PID.write_text(str(pid - 1))
        process = subprocess.Popen(["/bin/sleep", "600"])
        if process.pid == pid:
            return process
        process.kill()
        process.wait()
    return None
