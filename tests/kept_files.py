"""What a driver keeps on disk over a restart: one sample of each kind of file, written and read.

In: the writers and readers of this version. Out: `tests/data/kept/VERSION`, a driver's directory as
that version leaves it, for those that come after to read. A folder that is there is never written
again:

    .venv/bin/python tests/kept_files.py     # before a release; hack/release check asks for it
"""

import json
import os
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import make
from dra_driver.claims.model.claim import ClaimUid, ConsumerGroup
from dra_driver.claims.model.record import ClaimRecord, decode, encode
from dra_driver.claims.report.mps_events import MpsEvents
from dra_driver.claims.state.ownership import Ownership
from dra_driver.claims.state.records import RecordStore
from dra_driver.devices.device import DeviceKind
from dra_driver.devices.exclusion import ExclusionNote, read_note, write_note
from dra_driver.devices.health.record import HealthFile, HealthRecord, read_health
from dra_driver.devices.model import MigSlot, Refusal
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.host.envelope import seal, unseal
from dra_driver.mps import members
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
    mig_domain,
    shared_domain,
)
from dra_driver.mps.files import MpsFiles, members_in, read_file, write_file
from dra_driver.mps.supervisor.record import DomainRecord, read_record, write_record
from dra_driver.shares import last_good, notes
from dra_driver.shares.last_good import KeptConfig
from dra_driver.shares.notes import NotedConsumable, NotedDevice, ShareNotes
from unit.claims import test_record as records
from unit.claims import test_share_records as share_records
from unit.health.test_record import SICK

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = REPOSITORY / "tests" / "data" / "kept"
BOOT = "6cb2f4d1-9a47-4b6e-8f0a-3f3d2d0f5a11"
GPU, OTHER = make.gpu(0).uuid, make.gpu(1).uuid
MIG = make.mig_device(1, "3g.40gb", 4).uuid
SLOT = MigSlot(gpu=OTHER, profile_id=9, start=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of file.

    Attributes:
        name: for people.
        writer: the module of the driver in which it is put together.
        value: a sample.
        write: writes a sample below a driver's directory.
        read: reads it from there, as the driver does.
        since: the first version that writes such files.
    """

    name: str
    writer: str
    value: object
    write: Callable[[Path, Any], object]
    read: Callable[[Path], object]
    since: tuple[int, ...] = (0, 1, 0)


def of_claim(record: ClaimRecord, number: int) -> ClaimRecord:
    """The record as that of another claim, whose UID all of it says."""
    uid = f"{number}" * 8 + record.ref.uid[8:]
    text = json.dumps(unseal(encode(record), newest=2)).replace(record.ref.uid, uid)
    return decode(seal(json.loads(text), version=2))


CLAIMS = {
    one.ref.uid: one
    for number, record in enumerate(
        (
            records.OWING,
            records.DIVIDED,
            share_records.made("v1-shares"),
            share_records.made("v1-parts"),
            records.TAKEN_OVER,
            replace(records.DIVIDED, pods=(), groups=(ConsumerGroup(name="gang", uid="group-1"),)),
            records.PASSED_THROUGH,
        ),
        start=1,
    )
    for one in (of_claim(record, number),)
}
CLAIM = ClaimUid(next(iter(CLAIMS)))
DIVISION = Division(
    count=10,
    strategy=ShareStrategy.MPS,
    served_as="nvidia.com/gpu",
    combines=True,
    together=(GPU, OTHER),
)
DOMAINS = (
    Domain(
        id=DomainId(CLAIM),
        devices=(DomainDevice(uuid=GPU, pinned_memory_mib=10240), DomainDevice(uuid=OTHER)),
        active_thread_percentage=50,
    ),
    Domain(id=mig_domain(CLAIM, 0), devices=(DomainDevice(uuid=MIG, kind=DeviceKind.MIG),)),
    Domain(
        id=shared_domain(GPU),
        devices=(DomainDevice(uuid=GPU),),
        multi_user=True,
        incarnation="0123456789abcdef",
    ),
)
EXCLUSION = ExclusionNote(
    setting="0,*P4",
    label="GPU-5c9e7a1b",
    excluded=('GPU 0: it is left out by "0" of --exclude-gpus',),
    unmatched=('"*P4" of --exclude-gpus leaves nothing out',),
)
STATUS = Status(
    id=DomainId(CLAIM),
    state=State.RESTARTING,
    supervisor="supervisor-1",
    generation=DOMAINS[0].generation,
    reason="the daemon died",
    daemon=Daemon(pid=4711, start_ticks=123456),
    active_thread_percentage=50.0,
    pinned_memory_mib={GPU: 10240},
    restarts=2,
    failures=1,
)
DOMAIN_RECORD = DomainRecord(
    boot_id=BOOT,
    modes_found={GPU: 0, OTHER: 2},
    daemon=STATUS.daemon,
    token="5f2b",  # noqa: S106 (no secret: a sample)
    restarts=2,
)
NOTES = ShareNotes(
    origin="config map default",
    problem="line 3, column 5: replicas: want 2 or more",
    remarks=("failRequestsGreaterThanOne has no effect",),
    devices=(
        NotedDevice(
            name="gpu-0",
            served_as="nvidia.com/gpu",
            count=10,
            strategy="MPS",
            limited_by="MPS",
            waits=True,
            why="the kernel counts no GPU memory",
        ),
    ),
    consumables=(NotedConsumable(name="gpu-1", memory_mib=81559, shares=48),),
)
CONFIG = KeptConfig(
    data=b"version: v1\nsharing:\n  mps:\n    resources:\n    - name: nvidia.com/gpu\n"
    b"      replicas: 10 # \xff\n",
    origin="config map default",
)


def version(repository: Path = REPOSITORY) -> str:
    """The project's version."""
    return str(tomllib.loads((repository / "pyproject.toml").read_text())["project"]["version"])


def write_all(directory: Path) -> None:
    """Write a sample of each kind."""
    for kind in KINDS:
        kind.write(directory, kind.value)


def _files(directory: Path) -> MpsFiles:
    return MpsFiles(root=directory / "mps")


def _index(directory: Path) -> Ownership:
    return Ownership(directory, BOOT)


def _write_records(directory: Path, found: dict[str, ClaimRecord]) -> None:
    store = RecordStore(directory, version())
    for record in found.values():
        store.write(record)


def _read_records(directory: Path) -> dict[str, ClaimRecord]:
    return {record.ref.uid: record for record in RecordStore(directory).readable()}


def _write_domains(directory: Path, domains: tuple[Domain, ...]) -> None:
    _files(directory).make_folders()
    for domain in domains:
        write_file(_files(directory).desired(domain.id), encode_domain(domain), durable=False)


def _read(path: Path, reader: Callable[[bytes], object]) -> object:
    data = read_file(path)
    assert data is not None
    return reader(data)


def _write_member(directory: Path, claims: frozenset[str]) -> None:
    folder = _files(directory).members(shared_domain(GPU))
    os.close(members._open_made(folder))
    for claim in claims:
        members._make_member(folder / claim)


def _write_domain_record(directory: Path, record: DomainRecord) -> None:
    path = _files(directory).paths(STATUS.id).record
    path.parent.mkdir(parents=True)
    write_record(path, record)


def _deaths(directory: Path) -> MpsEvents:
    unused: Any = None
    folder = _files(directory).root
    return MpsEvents(unused, unused, unused, folder=folder, clock=unused)


def _write_deaths(directory: Path, deaths: dict[DomainId, int]) -> None:
    events = _deaths(directory)
    events._reported = deaths
    events._write_reported({})


KINDS: tuple[Kind, ...] = (
    Kind(
        name="records of claims",
        writer="claims/model/record.py",
        value=CLAIMS,
        write=_write_records,
        read=_read_records,
    ),
    Kind(
        name="marks of claims on GPUs",
        writer="claims/state/ownership.py",
        value=(CLAIM,),
        write=lambda directory, _: _index(directory).mark(GPU, CLAIM),
        read=lambda directory: _index(directory).holders(GPU),
    ),
    Kind(
        name="notes of MIG devices",
        writer="claims/state/ownership.py",
        value={SLOT: CLAIM},
        write=lambda directory, _: _index(directory).note(SLOT, CLAIM),
        read=lambda directory: _index(directory).made(),
    ),
    Kind(
        name="notes of MIG modes",
        writer="claims/state/ownership.py",
        value=(OTHER,),
        write=lambda directory, _: _index(directory).note_mode(OTHER),
        read=lambda directory: _index(directory).gpus_turned_on(),
    ),
    Kind(
        name="notes of GPUs that refuse MIG mode",
        writer="claims/state/ownership.py",
        value={GPU: Refusal(reason="in use by dcgm", waiting=frozenset({replace(SLOT, gpu=GPU)}))},
        write=lambda directory, value: _index(directory).note_refusals(value),
        read=lambda directory: _index(directory).refusals(),
    ),
    Kind(
        name="what is wrong with GPUs",
        writer="devices/health/record.py",
        value=HealthRecord(boot_id=BOOT, gpus={GPU: SICK}),
        write=lambda directory, value: HealthFile(directory, BOOT).write(value.gpus),
        read=read_health,
    ),
    Kind(
        name="the last good share config",
        writer="shares/last_good.py",
        value=CONFIG,
        write=lambda directory, value: last_good.keep(directory / last_good.FILE, value),
        read=lambda directory: last_good.kept(directory / last_good.FILE),
    ),
    Kind(
        name="notes of shares for status",
        writer="shares/notes.py",
        value=NOTES,
        write=notes.write_notes,
        read=notes.read_notes,
    ),
    Kind(
        name="GPUs that are left out",
        writer="devices/exclusion.py",
        value=EXCLUSION,
        write=write_note,
        read=read_note,
    ),
    Kind(
        name="MPS domains that are wanted",
        writer="mps/domain.py",
        value=DOMAINS,
        write=_write_domains,
        read=lambda directory: tuple(
            _read(_files(directory).desired(one.id), decode_domain) for one in DOMAINS
        ),
    ),
    Kind(
        name="the supervisor's answers",
        writer="mps/domain.py",
        value=STATUS,
        write=lambda directory, value: write_file(
            _files(directory).status(STATUS.id), encode_status(value), durable=False
        ),
        read=lambda directory: _read(_files(directory).status(STATUS.id), decode_status),
    ),
    Kind(
        name="members of shared MPS domains",
        writer="mps/members.py",
        value=frozenset({CLAIM}),
        write=_write_member,
        read=lambda directory: members_in(_files(directory).members(shared_domain(GPU))),
    ),
    Kind(
        name="the supervisor's records",
        writer="mps/supervisor/record.py",
        value=DOMAIN_RECORD,
        write=_write_domain_record,
        read=lambda directory: read_record(_files(directory).paths(STATUS.id).record, BOOT),
    ),
    Kind(
        name="deaths of MPS daemons that were told",
        writer="claims/report/mps_events.py",
        value={DomainId(CLAIM): 2, shared_domain(GPU): 1},
        write=_write_deaths,
        read=lambda directory: _deaths(directory)._read_reported(),
    ),
)


def main() -> int:
    """Write the folder of this version."""
    folder = FOLDER / version()
    if folder.exists():
        sys.stderr.write(
            f"error: {folder} is there; if {version()} was not released yet, delete it first\n"
        )
        return 1
    write_all(folder)
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
