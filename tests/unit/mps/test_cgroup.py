"""The control group that daemons are moved to."""

from pathlib import Path

from dra_driver.mps.cgroup import GROUP, DaemonGroup
from dra_driver.mps.domain import Daemon


def test_a_daemon_is_moved_in_every_hierarchy_of_cgroup_v1(tmp_path: Path) -> None:
    for name in ("devices", "cpuset"):
        (tmp_path / name / GROUP).mkdir(parents=True)
        (tmp_path / name / "cgroup.procs").touch()
    (tmp_path / "link").symlink_to("devices")
    (tmp_path / "cpuset/cpuset.cpus").write_text("0-1\n")
    (tmp_path / "cpuset" / GROUP / "cpuset.cpus").write_text("\n")
    DaemonGroup(tmp_path).take(Daemon(pid=7, start_ticks=8))
    assert (tmp_path / "devices" / GROUP / "cgroup.procs").read_text() == "7\n"
    assert (tmp_path / "cpuset" / GROUP / "cgroup.procs").read_text() == "7\n"
    assert (tmp_path / "cpuset" / GROUP / "cpuset.cpus").read_text() == "0-1\n"


def test_a_daemon_is_moved_once_in_cgroup_v2(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").touch()
    DaemonGroup(tmp_path).take(Daemon(pid=7, start_ticks=8))
    assert (tmp_path / GROUP / "cgroup.procs").read_text() == "7\n"


def test_without_a_cgroup_file_system_nothing_is_moved() -> None:
    DaemonGroup(None).take(Daemon(pid=7, start_ticks=8))
