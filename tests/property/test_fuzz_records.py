"""Files of our own with any content: records of claims, MPS domains, statuses, the supervisor's."""

import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import fuzz
import make
from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.model.record import ClaimRecord, decode, encode
from dra_driver.claims.state.records import RecordStore, stored_records
from dra_driver.devices.device import DeviceKind
from dra_driver.errors import StateError
from dra_driver.host.envelope import unseal
from dra_driver.mps.domain import (
    Daemon,
    Domain,
    DomainDevice,
    DomainId,
    State,
    Status,
    decode_domain,
    decode_status,
    encode_domain,
    encode_status,
)
from dra_driver.mps.files import MpsFiles, ids_in
from dra_driver.mps.supervisor.record import DomainRecord, read_record, write_record
from unit.claims.test_record import SAMPLES

WRITTEN = [encode(record, "0.0.9") for record in SAMPLES]
RECORDS = [json.loads(data)["payload"] for data in WRITTEN]
DOMAIN = Domain(
    id=DomainId("claim"),
    devices=(DomainDevice(uuid=make.gpu(0).uuid, pinned_memory_mib=512),),
    active_thread_percentage=50,
)
STATUS = Status(
    id=DomainId("claim"),
    state=State.READY,
    supervisor="1-1",
    daemon=Daemon(pid=1, start_ticks=1),
    active_thread_percentage=50.0,
    pinned_memory_mib=((make.gpu(0).uuid, 512),),
)


def sealed(payload: Any) -> bytes:
    """An envelope with a right checksum around anything."""
    body = fuzz.as_json(payload) if not isinstance(payload, bytes) else payload
    digest = sha256(body).hexdigest().encode()
    return b'{"version":1,"sha256":"%s","payload":%s}\n' % (digest, body)


def payload_of(data: bytes) -> Any:
    return json.loads(data)["payload"]


def use(record: ClaimRecord) -> None:
    """Whatever others do with a record at once."""
    assert isinstance(record.held_gpus, tuple)
    assert isinstance(record.touched_gpus, tuple)
    assert isinstance(record.devices, tuple)
    assert record.is_complete in {True, False}
    assert all(cleanup.of.name and cleanup.of.gpus is not None for cleanup in record.pending)
    assert hash((record.ref, record.boot_id)) is not None


@given(st.data())
@settings(deadline=None)
def test_a_record_of_any_content_is_a_record_or_damaged(data: st.DataObject) -> None:
    payload = data.draw(st.sampled_from(RECORDS).flatmap(fuzz.bent))
    found = fuzz.ours(lambda: decode(sealed(payload)))
    if isinstance(found, ClaimRecord):
        use(found)
        assert decode(encode(found)) == found
    else:
        assert isinstance(found, StateError)


@given(
    st.sampled_from(WRITTEN).flatmap(fuzz.broken)
    | st.binary(max_size=200)
    | fuzz.deep.map(sealed)
    | fuzz.deep.map(lambda text: sealed(b'{"ref":' + text + b"}"))
)
@settings(deadline=None)
@example(sealed(fuzz.DEEP[1]))
@example(sealed(b'{"a":' + b"9" * 10_000 + b"}"))
@example(sealed(b'{"a":"\xff"}'))
def test_bytes_of_any_kind_are_a_payload_or_damaged(content: bytes) -> None:
    for read in (unseal, decode, decode_domain, decode_status):
        found = fuzz.ours(lambda read=read: read(content))  # type: ignore[misc]
        assert not isinstance(found, Exception) or isinstance(found, StateError)


@given(st.data())
@settings(deadline=None)
def test_a_domain_of_any_content_is_a_domain_or_damaged(data: st.DataObject) -> None:
    payload = data.draw(fuzz.bent(payload_of(encode_domain(DOMAIN))))
    found = fuzz.ours(lambda: decode_domain(sealed(payload)))
    if isinstance(found, Domain):
        assert decode_domain(encode_domain(found)) == found
        assert found.generation
        assert found.visible_devices.isprintable()
        assert {device.kind for device in found.devices} <= set(DeviceKind)
    else:
        assert isinstance(found, StateError)


@given(st.data())
@settings(deadline=None)
def test_a_status_of_any_content_is_a_status_or_damaged(data: st.DataObject) -> None:
    payload = data.draw(fuzz.bent(payload_of(encode_status(STATUS))))
    found = fuzz.ours(lambda: decode_status(sealed(payload)))
    if isinstance(found, Status):
        assert isinstance(encode_status(found), bytes)
    else:
        assert isinstance(found, StateError)


@given(st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_supervisors_record_of_any_content_is_read_or_damaged(
    tmp_path: Path, data: st.DataObject
) -> None:
    path = tmp_path / "record.json"
    write_record(
        path,
        DomainRecord(
            boot_id="boot", modes_found={make.gpu(0).uuid: 0}, daemon=Daemon(pid=1, start_ticks=1)
        ),
    )
    path.write_bytes(sealed(data.draw(fuzz.bent(payload_of(path.read_bytes())))))
    found = fuzz.ours(lambda: read_record(path, "boot"))
    if isinstance(found, DomainRecord):
        write_record(path, found)
        assert read_record(path, "boot") is not None


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
    store = RecordStore(folder)
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


@pytest.mark.parametrize("uid", fuzz.ODD_TEXTS)
def test_a_uid_of_any_form_never_leaves_the_folder(tmp_path: Path, uid: str) -> None:
    store = RecordStore(tmp_path)
    for call in (store.read, store.delete):
        found = fuzz.ours(lambda call=call: call(ClaimUid(uid)))  # type: ignore[misc]
        assert found is None or isinstance(found, Exception)
    assert {path.name for path in tmp_path.iterdir()} == {"claims", "quarantine"}
