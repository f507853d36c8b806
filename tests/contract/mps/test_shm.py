"""/dev/shm of a domain as the kernel has it: what tenants cannot fill, nor keep full."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.mps.daemon import mounts
from dra_driver.mps.daemon.shm import FILES, ShmPruner

MIB = 1024**2
SIZE = 16 * MIB
GONE, HERE = frozenset({"gone"}), frozenset({"here"})


@pytest.fixture
def shm(tmp_path: Path, needs_root: None) -> Iterator[Path]:
    """A tmpfs as the supervisor mounts it."""
    folder = tmp_path / "shm"
    folder.mkdir()
    mounts.mount_tmpfs(folder, size_bytes=SIZE, files=FILES)
    yield folder
    mounts.unmount_all(folder)


def free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def hidden_by_links(folder: Path) -> Path:
    for number in range(5000):
        (folder / f"link-{number}").symlink_to("nowhere")
    return folder / "file"


def hidden_behind_links(folder: Path) -> Path:
    big = folder / "file"
    big.touch()
    hidden_by_links(folder)
    return big


def hidden_in_a_tree(folder: Path) -> Path:
    deep = folder.joinpath(*"d" * 300)
    deep.mkdir(parents=True)
    return deep / "file"


def hidden_in_a_folder_of_somebody_elses(folder: Path) -> Path:
    theirs = folder / "sticky"
    theirs.mkdir()
    os.chown(theirs, 1000, 1000)
    theirs.chmod(0o1700)
    big = theirs / "file"
    big.touch()
    os.chown(big, 2000, 2000)
    big.chmod(0)
    return big


def hidden_by_hard_links(folder: Path) -> Path:
    big = folder / "file"
    big.touch()
    for number in range(100):
        os.link(big, folder / f"name-{number}")
    return big


def hidden_by_names(folder: Path) -> Path:
    for name in (b"\xff\xfe", b"a\nb", b"-rf", b"..." * 80):
        (folder / os.fsdecode(name)).mkdir()
    return folder / os.fsdecode(b"\xff\xfe") / os.fsdecode(b"\x01\x80")


@pytest.mark.parametrize(
    "hidden",
    [
        hidden_by_links,
        hidden_behind_links,
        hidden_in_a_tree,
        hidden_in_a_folder_of_somebody_elses,
        hidden_by_hard_links,
        hidden_by_names,
    ],
)
def test_what_a_tenant_that_left_has_filled_is_free_at_the_second_look(
    shm: Path, hidden: object
) -> None:
    big = hidden(shm)  # type: ignore[operator]
    with big.open("wb") as file:
        file.write(bytes(15 * MIB))
    assert free(shm) <= MIB
    pruner = ShmPruner()
    pruner.look(shm, lambda: GONE)
    assert free(shm) <= MIB
    (shm / "of one that is here").write_text("kept")
    pruner.look(shm, lambda: HERE)
    assert free(shm) >= SIZE - MIB
    assert [path.name for path in shm.iterdir()] == ["of one that is here"]


def test_sparse_files_and_devices_go_too(shm: Path) -> None:
    with (shm / "sparse").open("wb") as file:
        os.truncate(file.fileno(), 2**50)
    os.mknod(shm / "device", 0o020666, os.makedev(1, 3))
    pruner = ShmPruner()
    pruner.look(shm, lambda: GONE)
    assert pruner.look(shm, lambda: HERE) == 2


def test_a_tmpfs_takes_so_many_files_and_no_more(tmp_path: Path, needs_root: None) -> None:
    folder = tmp_path / "shm"
    folder.mkdir()
    mounts.mount_tmpfs(folder, size_bytes=SIZE, files=100)
    try:
        for number in range(99):
            (folder / str(number)).symlink_to("nowhere")
        with pytest.raises(OSError, match="No space left"):
            (folder / "one more").symlink_to("nowhere")
        flags = os.statvfs(folder).f_flag
        assert flags & os.ST_NODEV
        assert flags & os.ST_NOSUID
    finally:
        mounts.unmount_all(folder)
