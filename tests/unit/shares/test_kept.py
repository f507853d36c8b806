"""What the driver keeps of shares on disk comes back as it was written, or not at all."""

from pathlib import Path

import pytest

import make
from dra_driver.admin.stored import read_notes
from dra_driver.devices.model import MigSlot, Refusal
from dra_driver.errors import StateError
from dra_driver.shares import notes
from dra_driver.shares.notes import (
    KeptConfig,
    NotedConsumable,
    NotedDevice,
    ShareNotes,
    keep,
    kept,
    write_notes,
)

LIMITED = NotedDevice(
    name="gpu-0", served_as="nvidia.com/gpu", count=4, strategy="MPS", limited_by="MPS"
)
UNLIMITED = NotedDevice(
    name="gpu-1",
    served_as="nvidia.com/gpu.shared",
    count=10,
    strategy="TimeSlicing",
    limited_by=None,
    why="time-slicing limits nothing",
)
NOTES = ShareNotes(
    origin="config.yaml",
    problem="it is no YAML",
    remarks=("one has no effect", "another may end limits"),
    devices=(LIMITED, UNLIMITED),
    waiting=("gpu-0",),
    consumables=(NotedConsumable(name="gpu-2", memory_mib=81920, shares=48),),
    refused={
        make.gpu(0).uuid: Refusal(
            reason="held by\na process",
            waiting=frozenset(
                MigSlot(gpu=make.gpu(0).uuid, profile_id=9, start=start) for start in (0, 4)
            ),
        ),
        make.gpu(1).uuid: Refusal(reason="not by this driver", is_of_mode=False),
    },
)
NO_PROBLEM = ShareNotes(origin="config.yaml")
CONFIG = KeptConfig(data=b"version: v1\n# \xff\n", origin="label default")


@pytest.mark.parametrize("written", [NOTES, NO_PROBLEM])
def test_notes_are_read_as_they_were_written(tmp_path: Path, written: ShareNotes) -> None:
    write_notes(tmp_path, written)
    assert read_notes(tmp_path) == written


def test_notes_that_are_missing_or_damaged_are_empty(tmp_path: Path) -> None:
    empty = ShareNotes(origin="", problem=None, remarks=(), devices=(), consumables=())
    assert read_notes(tmp_path) == empty
    write_notes(tmp_path, NOTES)
    file = tmp_path / notes.FILE
    file.write_bytes(file.read_bytes()[:-9])
    assert read_notes(tmp_path) == empty


def test_notes_are_for_root_alone(tmp_path: Path) -> None:
    write_notes(tmp_path, NOTES)
    assert (tmp_path / notes.FILE).stat().st_mode & 0o777 == 0o600


def test_a_config_is_kept_byte_for_byte_and_then_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "share-config.json"
    assert kept(path) is None
    for config in (CONFIG, KeptConfig(data=b"", origin="label other")):
        keep(path, config)
        assert kept(path) == config
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_config_that_is_kept_already_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "share-config.json"
    keep(path, CONFIG)
    was = path.stat().st_ino
    keep(path, CONFIG)
    assert path.stat().st_ino == was


def test_a_failed_write_names_path_and_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "share-config.json"
    with pytest.raises(StateError, match=r"/file/share-config\.json cannot be written: .+"):
        keep(path, CONFIG)
    with pytest.raises(StateError, match=r"/file/shares\.json cannot be written: .+"):
        write_notes(tmp_path / "file", NOTES)
