"""Who has a GPU open, as a procfs says."""

from pathlib import Path

import pytest

from dra_driver.devices.holders import Holder, Holders
from dra_driver.host.words import named


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A procfs in which this process is 7."""
    folder = tmp_path / "proc"
    folder.mkdir()
    (folder / "self").symlink_to("7")
    return folder


def add(proc: Path, pid: int, comm: bytes, *paths: str) -> None:
    """A process that has files open."""
    fds = proc / str(pid) / "fd"
    fds.mkdir(parents=True)
    (proc / str(pid) / "comm").write_bytes(comm)
    for number, path in enumerate(paths):
        (fds / str(number)).symlink_to(path)


def holders(proc: Path, minor: int = 0) -> tuple[Holder, ...]:
    return Holders((proc,), (Path("/dev"), Path("/run/nvidia/driver/dev"))).of(minor)


def test_processes_with_the_gpus_node_open_are_its_holders_sorted_by_pid(proc: Path) -> None:
    add(proc, 100, b"python3\n", "/dev/null", "/dev/nvidia0", "/dev/nvidia1")
    add(proc, 20, b"nv-hostengine\n", "/run/nvidia/driver/dev/nvidia0")

    assert named(holders(proc)) == "nv-hostengine (PID 20), python3 (PID 100)"
    assert named(holders(proc, 1)) == "python3 (PID 100)"


def test_other_files_and_this_process_count_for_nothing(proc: Path) -> None:
    others = (
        "/dev/nvidia00x",
        "/dev/nvidia10",
        "/dev/nvidiactl",
        "/tmp/dev/nvidia0",
        "/dev/nvidia",
    )
    add(proc, 5, b"other\n", *others)
    add(proc, 7, b"dra-driver\n", "/dev/nvidia0")

    assert holders(proc) == ()
    assert named(holders(proc, 10)) == "other (PID 5)"


@pytest.mark.parametrize(
    ("comm", "shown"),
    [
        (b"kworker/u8:1\n", "kworker/u8:1"),
        (b"a\n\x1b[31mb; rm -rf\n", "a???31mb??rm?-rf"),
        ("ü\u202e".encode(), "??"),
        (b"\xff\xfe", "??"),
        (b"x" * 200, "x" * 32),
        (b"", "a process without a name"),
    ],
)
def test_a_process_chooses_its_name_but_not_what_a_message_looks_like(
    proc: Path, comm: bytes, shown: str
) -> None:
    add(proc, 9, comm, "/dev/nvidia0")

    assert holders(proc) == (Holder(pid=9, name=shown),)


def test_an_ended_process_is_skipped(proc: Path) -> None:
    (proc / "11").mkdir()

    assert holders(proc) == ()


def test_the_first_folder_that_is_a_procfs_is_read(proc: Path, tmp_path: Path) -> None:
    empty, other = tmp_path / "no-procfs", tmp_path / "other"
    empty.mkdir()
    other.mkdir()
    (other / "self").symlink_to("1")
    add(other, 3, b"pod\n", "/dev/nvidia0")
    add(proc, 3, b"host\n", "/dev/nvidia0")

    looked = Holders((empty, tmp_path / "missing", proc, other), (Path("/dev"),)).of(0)
    assert named(looked) == "host (PID 3)"
    assert Holders((empty,), (Path("/dev"),)).of(0) == ()


def test_calls_at_the_same_time_share_a_look(proc: Path) -> None:
    clock = Clock()
    looking = Holders((proc,), (Path("/dev"),), clock)
    assert looking.of(0) == ()
    add(proc, 9, b"late\n", "/dev/nvidia0")

    assert looking.of(0) == ()
    clock.now += 1.5
    assert named(looking.of(0)) == "late (PID 9)"


def test_a_long_list_is_cut() -> None:
    many = [Holder(pid=pid, name="p") for pid in range(1, 9)]

    words = "p (PID 1), p (PID 2), p (PID 3), p (PID 4), p (PID 5)"
    assert named(many) == f"{words} and 3 more"
    assert named(many[:5]) == words
