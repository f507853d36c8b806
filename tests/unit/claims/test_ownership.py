"""Marks and notes on disk: what each says, whose it is, and what a disk that refuses leads to."""

from collections.abc import Callable
from pathlib import Path

import pytest

import make
from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.state.ownership import Ownership
from dra_driver.devices.model import GpuUuid, MigSlot
from dra_driver.errors import ConfigError, StateError

GPU, OTHER = make.gpu(0).uuid, make.gpu(1).uuid
ONE, TWO = ClaimUid("uid-1"), ClaimUid("uid-2")
SLOT = MigSlot(gpu=GPU, profile_id=19, start=3)
NEXT = MigSlot(gpu=OTHER, profile_id=9, start=0)


@pytest.fixture
def ownership(tmp_path: Path) -> Ownership:
    return Ownership(tmp_path, "boot-1")


def test_marks_are_of_one_claim_and_one_gpu_each(tmp_path: Path, ownership: Ownership) -> None:
    for _ in range(2):
        ownership.mark(GPU, TWO)
    ownership.mark(GPU, ONE)
    ownership.mark(OTHER, ONE)
    assert ownership.holders(GPU) == (ONE, TWO)
    assert ownership.marked() == {ONE, TWO}
    mark = tmp_path / "gpus" / GPU / ONE
    assert (mark.stat().st_mode & 0o777, mark.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    for _ in range(2):
        ownership.unmark(GPU, TWO)
    assert (ownership.holders(GPU), ownership.holders(OTHER)) == ((ONE,), (ONE,))
    ownership.unmark_all(ONE)
    assert ownership.marked() == set()


def test_notes_say_for_whom_each_mig_device_was_made_and_end_with_the_boot(
    tmp_path: Path, ownership: Ownership
) -> None:
    ownership.note(SLOT, ONE)
    ownership.note(NEXT, TWO)
    ownership.note_mode(GPU)
    assert ownership.made() == {SLOT: ONE, NEXT: TWO}
    assert (ownership.made(GPU), ownership.maker(SLOT)) == ({SLOT: ONE}, ONE)
    note = tmp_path / "mig" / "boot-1" / GPU / "19-3"
    assert (note.read_text(), note.stat().st_mode & 0o777) == (ONE, 0o600)
    assert note.parent.stat().st_mode & 0o777 == 0o700
    for _ in range(2):
        ownership.forget(SLOT)
    assert (ownership.made(GPU), ownership.maker(SLOT)) == ({}, None)
    assert ownership.turned_on(GPU), "the folder goes with the last note of the GPU alone"

    again = Ownership(tmp_path, "boot-2")
    assert (again.made(), again.gpus_turned_on()) == ({}, ())
    again.note(SLOT, TWO)
    again.forget_other_boots()
    assert [path.name for path in (tmp_path / "mig").iterdir()] == ["boot-2"]
    assert again.maker(SLOT) == TWO


def test_a_folder_without_notes_is_removed(tmp_path: Path, ownership: Ownership) -> None:
    ownership.note_mode(GPU)
    ownership.note_mode(OTHER)
    assert ownership.gpus_turned_on() == (GPU, OTHER)
    ownership.forget_mode(GPU)
    assert ownership.gpus_turned_on() == (OTHER,)
    assert not (tmp_path / "mig" / "boot-1" / GPU).exists()


def test_what_is_no_name_of_a_gpu_is_passed_over(tmp_path: Path, ownership: Ownership) -> None:
    for folder in ("gpus", "mig/boot-1"):
        (tmp_path / folder / ".hidden").mkdir(parents=True)
        (tmp_path / folder / ".hidden" / "mode").touch()
    assert (ownership.marked(), ownership.made(), ownership.gpus_turned_on()) == (set(), {}, ())


@pytest.mark.parametrize(
    ("obstacle", "call"),
    [
        ("gpus/{gpu}/uid-1/in-the-way", lambda one: one.unmark(GPU, ONE)),
        ("gpus/{gpu}/uid-1/in-the-way", lambda one: one.unmark_all(ONE)),
        ("mig/boot-1/{gpu}/19-3/in-the-way", lambda one: one.maker(SLOT)),
        ("mig/boot-1/{gpu}/19-3/in-the-way", lambda one: one.made()),
        ("mig/boot-1/{gpu}/19-3/in-the-way", lambda one: one.note(SLOT, ONE)),
        ("mig/boot-1/{gpu}/19-3/in-the-way", lambda one: one.forget(SLOT)),
        ("mig/boot-1/{gpu}/mode/in-the-way", lambda one: one.note_mode(GPU)),
        ("mig/boot-1/{gpu}/mode/in-the-way", lambda one: one.forget_mode(GPU)),
    ],
)
def test_a_disk_that_refuses_is_an_error_that_names_the_file(
    tmp_path: Path, ownership: Ownership, obstacle: str, call: Callable[[Ownership], object]
) -> None:
    path = tmp_path / obstacle.format(gpu=GPU)
    path.mkdir(parents=True)
    with pytest.raises(
        StateError, match=rf"cannot keep track of who has which GPU: {path.parent}: .*; check the"
    ):
        call(ownership)


@pytest.mark.parametrize(
    ("folder", "call"),
    [
        ("gpus", lambda one: one.mark(GPU, ONE)),
        ("gpus", lambda one: one.holders(GPU)),
        ("gpus", lambda one: one.marked()),
        ("mig", lambda one: one.made()),
        ("mig", lambda one: one.forget_other_boots()),
    ],
)
def test_folders_that_cannot_be_read_are_not_taken_for_empty_ones(
    tmp_path: Path, ownership: Ownership, folder: str, call: Callable[[Ownership], object]
) -> None:
    (tmp_path / folder).symlink_to(folder)  # to itself
    with pytest.raises(StateError, match=rf"which GPU: {tmp_path / folder}.*: Too many levels of"):
        call(ownership)


@pytest.mark.parametrize("name", ["", "..", "a/b", "GPU-" + "0" * 100])
def test_no_name_leads_out_of_the_drivers_directory(ownership: Ownership, name: str) -> None:
    with pytest.raises(StateError, match="is not a valid name for a folder of the driver's"):
        ownership.mark(GpuUuid(name), ONE)
    with pytest.raises(StateError):
        Ownership(Path("/nowhere"), name)
    with pytest.raises(ConfigError):
        ownership.mark(GPU, ClaimUid("../x"))
