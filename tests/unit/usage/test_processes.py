"""Processes as procfs has them: this machine's own, and folders in the form of procfs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.host.process import has_pids_of_host
from dra_driver.usage.processes import PodProcess, Processes, now_ticks

UID = "0b9c4c6e-0d2a-4c55-8f3c-7f2b0a1d9e11"
ID = "ab" * 32


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "self").symlink_to("1")
    return tmp_path


def put(proc: Path, pid: int, name: str = "python3", start: int = 500, group: str = "/") -> None:
    (proc / str(pid)).mkdir()
    fields = ["S", "42", *["0"] * 17, str(start), *["0"] * 30]
    (proc / f"{pid}/stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
    (proc / f"{pid}/cgroup").write_text(f"0::{group}\n")


def test_this_process_is_there_with_its_parent() -> None:
    found = Processes(Path("/proc")).see(os.getpid(), before=now_ticks())
    assert found is not None
    assert (found.pid, found.parent) == (os.getpid(), os.getppid())
    assert 0 < found.start_ticks <= now_ticks()


def test_an_ended_process_is_not_found() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert Processes(Path("/proc")).see(child.pid, before=now_ticks()) is None


def test_a_reused_pid_is_not_believed(proc: Path) -> None:
    put(proc, 7, start=500, group=f"/kubepods/pod{UID}/{ID}")
    assert Processes(proc).see(7, before=499) is None
    found = Processes(proc).see(7, before=500)
    assert found is not None
    assert found.pod == PodProcess(pod_uid=UID, container_id=ID)


def test_a_process_started_now_began_later_than_what_was_asked_before() -> None:
    before = now_ticks() - 1
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert Processes(Path("/proc")).see(child.pid, before=before) is None
        assert Processes(Path("/proc")).see(child.pid, before=now_ticks() + 1) is not None
        child.kill()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("python3", "python3"),
        ("a) S 1 (b", "a??S?1??b"),
        ("\x1b[2J\n", "??2J?"),
        ("x" * 64, "x" * 32),
        ("", "a process without a name"),
    ],
)
def test_a_name_is_made_harmless(proc: Path, name: str, shown: str) -> None:
    put(proc, 7, name)
    found = Processes(proc).see(7, before=1000)
    assert found is not None
    assert (found.name, found.parent) == (shown, 42)


@pytest.mark.parametrize("text", ["", "7 (a", "7 (a) S 1", "7 (a) S x " + "0 " * 40])
def test_an_unreadable_process_is_absent(proc: Path, text: str) -> None:
    put(proc, 7)
    (proc / "7/stat").write_text(text)
    assert Processes(proc).see(7, before=1000) is None


def test_other_folders_than_procfs_are_skipped(tmp_path: Path) -> None:
    found = Processes(tmp_path, Path("/proc")).see(os.getpid(), before=now_ticks())
    assert found is not None


def test_whether_pids_are_the_hosts(proc: Path) -> None:
    own = Path("/proc")
    assert has_pids_of_host(own, own)
    (proc / "1/ns").mkdir(parents=True)
    (proc / "1/ns/pid").touch()
    assert not has_pids_of_host(own, proc)
