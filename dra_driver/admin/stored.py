"""Reads what the driver stores on a node, for commands, without changing it."""

import stat
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from dra_driver.claims.model.record import ClaimRecord, MakeMigDevices
from dra_driver.claims.state.ledger import names_in
from dra_driver.claims.state.records import SUFFIX, Unusable, disk_refused, entry_in
from dra_driver.devices.model import GpuUuid, MigSlot
from dra_driver.errors import StateError, VersionError
from dra_driver.host.files import MOVE_AWAY, listing_advice
from dra_driver.host.ofd_lock import holder_of
from dra_driver.mps.files import MpsFiles
from dra_driver.shares.notes import FILE, ShareNotes, read_sealed


class StoredRecords(Struct, frozen=True, kw_only=True):
    """The records below a directory. `damaged` maps file names to reasons.

    `newer` has the names of files that are not damaged, but of a newer version of this driver.
    `lost` has the GPUs that damaged files name, by file name.
    """

    records: tuple[ClaimRecord, ...]
    damaged: Mapping[str, str]
    newer: frozenset[str] = frozenset()
    lost: Mapping[str, frozenset[GpuUuid]] = {}


def stored_records(directory: Path) -> StoredRecords:
    """Return all records below a directory, without creating or moving anything.

    Raises StateError if a folder cannot be listed, because that does not mean that it is empty.
    """
    records: list[ClaimRecord] = []
    damaged: dict[str, str] = {}
    newer: set[str] = set()
    lost: dict[str, frozenset[GpuUuid]] = {}
    for folder, is_sound in ((directory / "claims", True), (directory / "quarantine", False)):
        for name in sorted(names_in(folder)):
            if name.startswith("."):
                continue
            try:
                entry = entry_in(f"{folder}/{name}", name.partition(SUFFIX)[0])
            except OSError as error:
                damaged[name] = str(disk_refused(f"read {folder / name}", error))
                continue
            match entry:
                case ClaimRecord() if is_sound:
                    records.append(entry)
                case ClaimRecord():
                    damaged[name] = f"it is not the record of claim {entry.ref}"
                case Unusable(newer=VersionError()):
                    newer.add(name)
                    damaged[name] = f"not damaged, but of a newer version: {entry.reason}"
                case Unusable(is_empty=False):
                    damaged[name] = entry.reason
                    lost[name] = entry.gpus
                case _:  # unprepared meanwhile, or written just before a power cut
                    continue
    return StoredRecords(records=tuple(records), damaged=damaged, newer=frozenset(newer), lost=lost)


def made_for(record: ClaimRecord) -> list[MigSlot]:
    """Return the places where MIG devices were made for a claim, or are being made."""
    steps = (step for step in record.steps if isinstance(step, MakeMigDevices))
    return [place.slot for step in steps for place in step.places]


def read_notes(directory: Path) -> ShareNotes:
    """Return the notes about shares; empty ones if there are none, or they are damaged."""
    return read_sealed(directory / FILE, ShareNotes) or ShareNotes()


def supervisor_runs(mps: Path) -> bool:
    """Tell whether a supervisor serves a directory of MPS domains now. Raises StateError."""
    return holder_of(MpsFiles(root=mps).lock) is not None


def is_folder(path: Path) -> bool:
    """Tell whether a folder exists.

    Raises StateError if something else is there, or if this process may not look.
    """
    try:
        seen = path.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StateError(
            f"cannot look at {path}: {error.strerror}; {listing_advice(error)}"
        ) from error
    if not stat.S_ISDIR(seen.st_mode):
        raise StateError(f"{path} is not a folder: {MOVE_AWAY}")
    return True
