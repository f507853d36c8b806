"""What is removed from a shared domain's /dev/shm, and what a tenant's names cannot bring about."""

import fcntl
import mmap
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.mps.daemon import shm
from dra_driver.mps.daemon.shm import ShmPruner

FIRST, SECOND = frozenset({"first"}), frozenset({"second"})
BOTH = FIRST | SECOND


class Folder:
    """A folder, the claims that are there, and who prunes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.mkdir()
        self.pruner = ShmPruner()

    def look(self, members: frozenset[str]) -> int:
        return self.pruner.look(self.path, lambda: members)

    def make(self, name: str = "file") -> Path:
        made = self.path / name
        made.write_text("content")
        return made


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "shm")


def test_a_file_goes_when_all_that_may_have_made_it_have_left(folder: Folder) -> None:
    made = folder.make()
    assert [folder.look(members) for members in (BOTH, BOTH, SECOND)] == [0, 0, 0]
    assert made.exists()
    assert folder.look(frozenset({"third"})) == 1
    assert not made.exists()


def test_a_file_of_a_claim_that_is_there_stays_whoever_comes_and_goes(folder: Folder) -> None:
    made = folder.make()
    for others in (FIRST, frozenset[str](), SECOND, frozenset({"third"})):
        assert folder.look(frozenset({"stays"}) | others) == 0
    assert made.exists()


def test_a_claim_that_joins_while_files_are_looked_at_may_have_made_them(folder: Folder) -> None:
    def joins() -> frozenset[str]:
        folder.make("later")
        return BOTH

    made = folder.make()
    folder.pruner.look(folder.path, joins)
    assert folder.look(SECOND) == 0
    assert made.exists()


def test_a_file_that_has_changed_may_be_the_work_of_whoever_is_there(folder: Folder) -> None:
    made = folder.make()
    folder.look(FIRST)
    before = made.stat().st_ctime_ns
    while made.stat().st_ctime_ns == before:  # the kernel's clock has steps
        made.write_text("of another claim")
    assert folder.look(SECOND) == 0
    assert folder.look(SECOND) == 0
    assert made.exists()


@pytest.mark.parametrize("how", ["open to read", "open to write", "mapped"])
def test_a_file_that_somebody_has_open_or_mapped_stays_until_it_is_let_go(
    folder: Folder, how: str
) -> None:
    made = folder.make()
    folder.look(FIRST)
    with made.open("rb" if how == "open to read" else "r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0) if how == "mapped" else None
        if mapped is not None:
            file.close()
        assert [folder.look(SECOND) for _ in range(2)] == [0, 0]
        assert made.exists()
        if mapped is not None:
            mapped.close()
    assert folder.look(SECOND) == 1


def test_a_tenants_lease_holds_nobody_up(folder: Folder) -> None:
    made = folder.make()
    folder.look(FIRST)
    # A lease that is in the way of somebody is told of by a signal.
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    with made.open("r+b") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        assert folder.look(SECOND) == 0
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    signal.signal(signal.SIGIO, before)
    assert made.exists()


def test_a_tenant_that_opens_a_file_just_then_does_not_end_the_supervisor(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = folder.make()
    folder.look(FIRST)
    came: list[int] = []

    def unlink(name: str, *, dir_fd: int) -> None:
        # The usual signal of a lease (SIGIO) would end this process here.
        opens = f"import os; os.open({str(made)!r}, os.O_RDWR | os.O_NONBLOCK)"
        came.append(subprocess.run([sys.executable, "-c", opens], check=False).returncode)
        remove(name, dir_fd=dir_fd)

    remove = os.unlink
    monkeypatch.setattr(os, "unlink", unlink)
    assert folder.look(SECOND) == 1
    assert came == [1]  # told to try again


def test_links_sockets_fifos_and_folders_go_as_files_do_and_no_link_is_followed(
    folder: Folder, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("not a tenant's")
    (folder.path / "link").symlink_to(outside)
    (folder.path / "dangling").symlink_to("nowhere")
    (folder.path / "folder").mkdir()
    (folder.path / "folder" / "inside").touch()
    (folder.path / "folder" / "link").symlink_to(outside)
    os.mkfifo(folder.path / "fifo")
    inside = os.open(folder.path, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(f"/proc/self/fd/{inside}/socket")
    os.close(inside)
    assert [folder.look(members) for members in (FIRST, FIRST, SECOND)] == [0, 0, 7]
    assert list(folder.path.iterdir()) == []
    assert (outside / "kept").read_text() == "not a tenant's"


def test_names_that_mean_something_elsewhere_are_only_names(folder: Folder) -> None:
    names = ["-rf", "a\nb", os.fsdecode(b"\xff\xfe"), "*", "x" * 255, " ", "$(id)", "..."]
    for name in names:
        folder.make(name)
    folder.look(FIRST)
    assert folder.look(SECOND) == len(names)
    assert list(folder.path.iterdir()) == []


def test_a_second_name_of_a_file_elsewhere_is_removed_alone(folder: Folder, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("kept")
    os.link(other, folder.path / "name")
    folder.look(FIRST)
    assert folder.look(SECOND) == 1
    assert other.read_text() == "kept"


def test_a_folder_that_is_a_link_or_gone_is_left_alone(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "file").touch()
    (tmp_path / "link").symlink_to(real)
    pruner = ShmPruner()
    for path in (tmp_path / "link", tmp_path / "gone"):
        for members in (FIRST, SECOND, SECOND):
            assert pruner.look(path, lambda members=members: members) == 0  # type: ignore[misc]
    assert (real / "file").exists()


def test_a_look_that_is_cut_short_removes_something_and_the_next_goes_on(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        folder.make(str(number))
    folder.look(FIRST)
    monkeypatch.setattr(shm, "MOST_NAMES", 3)
    assert [folder.look(SECOND) for _ in range(3)] == [3, 2, 0]


def test_all_names_of_a_file_go(folder: Folder) -> None:
    made = folder.make()
    (folder.path / "folder").mkdir()
    for number in range(3):
        os.link(made, folder.path / f"name-{number}")
        os.link(made, folder.path / "folder" / f"name-{number}")
    folder.look(FIRST)
    assert folder.look(SECOND) == 8
    assert list(folder.path.iterdir()) == []


def test_what_somebody_who_is_there_puts_in_a_folder_stays_and_the_folder_with_it(
    folder: Folder,
) -> None:
    theirs = folder.path / "folder"
    theirs.mkdir()
    (theirs / "old").touch()
    folder.look(FIRST)
    (theirs / "new").write_text("of the second")
    folder.look(BOTH)
    folder.look(SECOND)
    assert (theirs / "new").read_text() == "of the second"
    assert not (theirs / "old").exists()
    (theirs / "new").unlink()
    folder.look(SECOND)
    assert theirs.exists(), "the second has used it"
    folder.look(frozenset({"third"}))
    assert not theirs.exists()


def test_a_tree_deeper_than_files_can_be_open_goes_at_once(folder: Folder) -> None:
    make_chain(folder.path, 3000)
    folder.look(FIRST)
    assert folder.look(SECOND) == 3001
    assert list(folder.path.iterdir()) == []


def make_chain(top: Path, depth: int) -> None:
    """Make a file in a folder of a folder, and so on."""
    here = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        inside = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inside
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def test_a_folder_that_is_moved_meanwhile_leads_nowhere_else(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moved to the top, `..` of it is the top; of the top it would be the node's own folder."""
    outside = tmp_path / "mine"
    outside.touch()
    deep = folder.path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "file").touch()
    folder.make("beside")
    folder.look(FIRST)
    opened = os.open

    def moving(path: str, *rest: int, **facts: int) -> int:
        if path == ".." and deep.exists():
            deep.rename(folder.path / "moved")
        return opened(path, *rest, **facts)

    monkeypatch.setattr(os, "open", moving)
    assert folder.look(SECOND) == 2, "the two files"
    monkeypatch.setattr(os, "open", opened)
    assert outside.exists()
    assert folder.look(SECOND) == 0, "the folders have changed"
    assert folder.look(frozenset({"third"})) == 3
    assert list(folder.path.iterdir()) == []


def test_what_a_look_did_not_come_to_is_not_new_to_the_next(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = folder.path / "a" / "b"
    deep.mkdir(parents=True)
    (folder.path / "a" / "file").touch()
    folder.look(FIRST)
    opened = os.open

    def refused(path: str, *rest: int, **facts: int) -> int:
        if path == "a":
            raise PermissionError(path)
        return opened(path, *rest, **facts)

    monkeypatch.setattr(os, "open", refused)
    assert folder.look(SECOND) == 0
    monkeypatch.setattr(os, "open", opened)
    assert folder.look(SECOND) == 3
