"""Folders of records and MPS domains with files of any name, and UIDs of any form."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fuzz
from dra_driver.admin.stored import stored_records
from dra_driver.claims.state.ledger import Ledger
from dra_driver.errors import StateError
from dra_driver.mps.files import MpsFiles, ids_in

FILE_NAMES = st.sampled_from(
    [b"a.json", b".a.json.tmp", b"\xff.json", b"..json", b".json", b"a.json.json", b"a b.json",
     b"x" * 200 + b".json", "é.json".encode(), b"-.json", b"\n.json", b"a"]
)  # fmt: skip


@given(names=st.sets(FILE_NAMES), content=st.binary(max_size=60))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_folder_of_records_may_hold_files_of_any_name(
    tmp_path_factory: pytest.TempPathFactory, names: set[bytes], content: bytes
) -> None:
    folder = tmp_path_factory.mktemp("records")
    store = Ledger(folder, boot_id="boot-1")
    for name in names:
        (folder / "claims" / os.fsdecode(name)).write_bytes(content)
    uids = store.uids()
    assert all(isinstance(uid, str) and "/" not in uid for uid in uids)
    for uid in uids:
        assert store.read(uid) is None
        store.delete(uid)
    assert stored_records(folder).records == ()


@given(names=st.sets(FILE_NAMES))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_folder_of_domains_may_hold_files_of_any_name(
    tmp_path_factory: pytest.TempPathFactory, names: set[bytes]
) -> None:
    files = MpsFiles(root=tmp_path_factory.mktemp("mps"))
    files.make_folders()
    for name in names:
        (files.desired_folder / os.fsdecode(name)).write_bytes(b"x")
    for domain in ids_in(files.desired_folder):
        found = fuzz.ours(lambda domain=domain: files.desired(domain))  # type: ignore[misc]
        assert isinstance(found, Path | StateError)
