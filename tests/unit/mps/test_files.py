"""The files below the MPS directory."""

from pathlib import Path

import pytest

from dra_driver.errors import StateError
from dra_driver.mps.domain import DomainId
from dra_driver.mps.files import MpsFiles, delete_file, ids_in, read_file, write_file


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_written_whole_replaced_and_deleted(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "a.json"
    assert read_file(path) is None
    write_file(path, b"one", durable=durable)
    write_file(path, b"two", durable=durable)
    assert read_file(path) == b"two"
    assert ids_in(tmp_path) == {"a"}
    (tmp_path / ".a.json.tmp").touch()
    delete_file(path)
    delete_file(path)
    assert list(tmp_path.iterdir()) == []


def test_half_written_files_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / ".a.json.tmp").touch()
    (tmp_path / ".b.json").touch()
    assert ids_in(tmp_path) == set()
    assert ids_in(tmp_path / "absent") == set()


def test_a_folder_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").mkdir()
    with pytest.raises(StateError, match=r"cannot write .*a\.json"):
        write_file(tmp_path / "a.json", b"", durable=False)


def test_no_id_leads_out_of_the_mps_directory(tmp_path: Path) -> None:
    files = MpsFiles(root=tmp_path)
    for path in (files.desired, files.status, files.paths):
        with pytest.raises(StateError, match="not a valid domain id"):
            path(DomainId("../../etc/cron.d/x"))
