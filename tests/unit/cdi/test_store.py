"""CDI spec files on disk: whole or not there, and nobody else's."""

import json
import os
from pathlib import Path

import pytest

from dra_driver.cdi.model import Edits, Spec, render
from dra_driver.cdi.store import SpecStore
from dra_driver.errors import StateError

UID = "0c8f0b6a-0000-4000-8000-000000000000"


def spec(value: str = "b") -> Spec:
    edits = Edits(env=(f"A={value}",))
    return Spec(devices={f"{UID}-gpu-0": edits})


def file_of(root: Path) -> Path:
    return root / f"k8s.gpu.nvidia.com-claim_{UID}.json"


def test_a_spec_is_written_whole_readable_by_all_and_without_leftovers(tmp_path: Path) -> None:
    root = tmp_path / "var" / "run" / "cdi"
    SpecStore(root).write(UID, spec())

    assert json.loads(file_of(root).read_bytes()) == json.loads(json.dumps(render(spec())))
    assert file_of(root).stat().st_mode & 0o7777 == 0o644
    assert list(root.iterdir()) == [file_of(root)]


def test_a_second_write_of_the_same_content_does_not_touch_the_file(tmp_path: Path) -> None:
    store = SpecStore(tmp_path)
    store.write(UID, spec())
    before = file_of(tmp_path).stat()
    store.write(UID, spec())  # by a look
    assert file_of(tmp_path).stat().st_atime_ns == before.st_atime_ns
    SpecStore(tmp_path).write(UID, spec())
    assert file_of(tmp_path).stat() == before


def test_a_spec_that_only_root_may_read_is_opened_to_all(tmp_path: Path) -> None:
    store = SpecStore(tmp_path)
    store.write(UID, spec())
    file_of(tmp_path).chmod(0o600)
    store.write(UID, spec())
    assert file_of(tmp_path).stat().st_mode & 0o7777 == 0o644


def test_a_folder_that_is_made_is_open_to_all_and_one_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o750)
    before = os.umask(0o077)
    try:
        SpecStore(tmp_path / "there").write(UID, spec())
        SpecStore(tmp_path / "var/run/cdi").write(UID, spec())
    finally:
        os.umask(before)

    modes = {
        path: (tmp_path / path).stat().st_mode & 0o7777 for path in ("there", "var", "var/run/cdi")
    }
    assert modes == {"there": 0o750, "var": 0o755, "var/run/cdi": 0o755}


def test_changed_content_replaces_the_file(tmp_path: Path) -> None:
    store = SpecStore(tmp_path)
    store.write(UID, spec())
    store.write(UID, spec("other"))

    written = json.loads(file_of(tmp_path).read_bytes())
    assert written == json.loads(json.dumps(render(spec("other"))))


def test_uids_are_those_of_this_drivers_files_only(tmp_path: Path) -> None:
    store = SpecStore(tmp_path)
    store.write(UID, spec())
    for name in (
        "nvidia.yaml",
        "k8s.gpu.nvidia.com-base.json",
        f".k8s.gpu.nvidia.com-claim_{UID}.json.tmp",
        "k8s.gpu.nvidia.com-claim_other.yaml",
    ):
        (tmp_path / name).touch()

    assert store.uids() == {UID}


def test_an_absent_folder_holds_no_specs(tmp_path: Path) -> None:
    store = SpecStore(tmp_path / "absent")

    assert store.uids() == set()
    assert not store.exists(UID)
    assert store.delete_leftovers() == 0
    store.delete(UID)


def test_delete_takes_the_file_of_that_claim_only(tmp_path: Path) -> None:
    store = SpecStore(tmp_path)
    store.write(UID, spec())
    store.write("other", spec())
    store.delete(UID)
    store.delete(UID)

    assert store.uids() == {"other"}


def test_the_peers_file_for_the_same_claim_goes_because_both_would_be_ignored(
    tmp_path: Path,
) -> None:
    peers = file_of(tmp_path).with_suffix(".yaml")
    peers.write_text("cdiVersion: 0.5.0\n")
    SpecStore(tmp_path).write(UID, spec())

    assert not peers.exists()


def test_leftovers_of_a_killed_driver_are_deleted_and_foreign_temporary_files_kept(
    tmp_path: Path,
) -> None:
    store = SpecStore(tmp_path)
    store.write(UID, spec())
    (tmp_path / f".k8s.gpu.nvidia.com-claim_{UID}.json.tmp").write_text("{")
    foreign = tmp_path / "spec.123.tmp"
    foreign.touch()

    assert store.delete_leftovers() == 1
    assert set(tmp_path.iterdir()) == {foreign, file_of(tmp_path)}


def test_rootless_runtimes_can_read_a_spec(tmp_path: Path) -> None:
    former = os.umask(0o077)
    try:
        SpecStore(tmp_path).write(UID, spec())
    finally:
        os.umask(former)

    assert file_of(tmp_path).stat().st_mode & 0o7777 == 0o644


@pytest.mark.parametrize("uid", ["", "../../etc/passwd", "a/b", ".hidden", "a\0b", "a\n"])
def test_a_uid_that_is_not_a_file_name_is_refused(tmp_path: Path, uid: str) -> None:
    with pytest.raises(StateError, match="cannot be part of a file name"):
        SpecStore(tmp_path).write(uid, spec())


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StateError, match="cannot be written: Not a directory"):
        SpecStore(tmp_path / "file" / "cdi").write(UID, spec())


def test_a_path_that_is_a_folder_is_a_clear_error_and_leaves_no_temporary_file(
    tmp_path: Path,
) -> None:
    file_of(tmp_path).mkdir()

    with pytest.raises(StateError, match="cannot be written"):
        SpecStore(tmp_path).write(UID, spec())
    assert list(tmp_path.iterdir()) == [file_of(tmp_path)]
