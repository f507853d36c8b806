import os
from pathlib import Path

import pytest

from dra_driver.host.files import LARGEST, read_whole, temporary_of, write_whole


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_whole(path, b"one", mode=0o600, durable=False)
    write_whole(path, b"two", mode=0o644, durable=False)
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o7777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_content_is_read_with_the_identity_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert read_whole(path) is None
    for data in (b"", b"x" * 100_000):
        write_whole(path, data, mode=0o600, durable=False)
        found = read_whole(path)
        assert found is not None
        assert found[0] == data
        assert os.path.samestat(found[1], path.stat())


@pytest.mark.timeout(10)
def test_special_files_are_neither_awaited_nor_read(tmp_path: Path) -> None:
    pipe, endless = tmp_path / "pipe", tmp_path / "endless"
    os.mkfifo(pipe)
    endless.symlink_to("/dev/zero")
    for path in (pipe, endless):
        with pytest.raises(OSError, match="it is not a plain file"):
            read_whole(path)
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(LARGEST + 1)
    with pytest.raises(OSError, match="File too large"):
        read_whole(huge)


@pytest.mark.timeout(10)
def test_a_pipe_in_the_way_of_a_file_being_written_is_an_error_once(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    os.mkfifo(temporary_of(path))
    with pytest.raises(OSError, match="No such device or address"):
        write_whole(path, b"one", mode=0o600, durable=False)
    write_whole(path, b"one", mode=0o600, durable=False)
    assert path.read_bytes() == b"one"


def test_unfinished_files_have_hidden_names(tmp_path: Path) -> None:
    temporary = Path(temporary_of(tmp_path / "a.json"))
    assert temporary.parent == tmp_path
    assert temporary.name == ".a.json.tmp"


@pytest.mark.parametrize("durable", [True, False])
def test_a_durable_file_is_synced_before_its_rename_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    path = tmp_path / "a.json"
    synced: list[tuple[str, bool]] = []

    def fsync(file: int) -> None:
        synced.append((str(Path(f"/proc/self/fd/{file}").readlink()), path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_whole(path, b"one", mode=0o600, durable=durable)
    expected = [(temporary_of(path), False), (str(tmp_path), True)]
    assert synced == (expected if durable else [])


def test_a_write_that_fails_leaves_the_former_file_and_no_half_of_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    write_whole(path, b"one", mode=0o600, durable=True)

    def fsync(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"two", mode=0o600, durable=True)
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_remains_of_a_killed_writer_block_nobody(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    Path(temporary_of(path)).write_bytes(b"half of something longer")
    write_whole(path, b"one", mode=0o600, durable=False)
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_in_the_place_of_the_new_file_is_not_followed(tmp_path: Path) -> None:
    path, target = tmp_path / "a.json", tmp_path / "target"
    target.write_text("keep")
    Path(temporary_of(path)).symlink_to(target)
    with pytest.raises(OSError):  # noqa: PT011 (its number differs between systems)
        write_whole(path, b"one", mode=0o600, durable=False)
    assert target.read_text() == "keep"
    assert not path.exists()
