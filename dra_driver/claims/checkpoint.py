"""The records of all claims of this node on disk: one file per claim UID.

    <directory>/claims/<uid>.json       the record (format: claims/record.py)
    <directory>/claims/.<uid>.json.tmp  being written
    <directory>/quarantine/<uid>.json   damaged, moved aside for a person to look at

Each call touches the files of one claim, so its cost does not depend on how many there are. Nothing
is kept in memory: in a rolling update two driver processes work side by side, and the kubelet may
send Prepare to one and Unprepare to the other. Who changes a record holds the claim's lock
(claims/locks.py); reading needs none.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from dra_driver.claims.model import ClaimUid
from dra_driver.claims.record import ClaimRecord, decode, encode
from dra_driver.errors import ConfigError, StateError
from dra_driver.files import TEMPORARY_SUFFIX, read_whole, temporary_of, write_whole

log = structlog.get_logger()

_UID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
"""What may become a file name and part of a CDI device name. Kubernetes' own UIDs are RFC 4122."""

_SUFFIX = ".json"


def check_uid(uid: str) -> ClaimUid:
    """Return the claim UID if it is safe as a file name.

    Raises:
        ConfigError: it is empty, too long, or has a character that no UID has.
    """
    if _UID.fullmatch(uid) is None:
        raise ConfigError(
            f"claim UID {uid[:160]!r} is not a valid UID: it must have 1 to 128 letters, digits, "
            "'-', '_' and '.'"
        )
    return ClaimUid(uid)


class RecordStore:
    """The record files below one directory. Safe for several threads and processes per claim lock.

    Attributes:
        quarantined: how many damaged records this process has moved aside.
    """

    def __init__(self, directory: Path) -> None:
        self._claims = directory / "claims"
        self._quarantine = directory / "quarantine"
        self.quarantined = 0
        try:
            for folder in (directory, self._claims, self._quarantine):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _failed("make", folder, error) from error

    def read(self, uid: ClaimUid) -> ClaimRecord | None:
        """Return the claim's record, or None. A damaged record is moved aside and counts as none.

        Raises:
            StateError: the disk cannot be read.
        """
        path = self._path(uid)
        try:
            found = read_whole(path)
        except OSError as error:
            raise _failed("read", path, error) from error
        if found is None:
            return None
        data, seen = found
        try:
            record = decode(data)
        except StateError as error:
            self._move_aside(path, seen, str(error))
            return None
        if record.ref.uid != uid:
            self._move_aside(path, seen, f"it is the record of claim UID {record.ref.uid}")
            return None
        return record

    def write(self, record: ClaimRecord) -> None:
        """Store the record so that it outlives a crash and a power cut from this moment on.

        Raises:
            StateError: the disk is full or cannot be written.
        """
        path = self._path(record.ref.uid)
        try:
            write_whole(path, encode(record), mode=0o600, durable=True)
        except OSError as error:
            raise _failed("write", path, error) from error

    def delete(self, uid: ClaimUid) -> None:
        """Remove the claim's record and what a crash may have left beside it. None is fine.

        Not synced: a record that a power cut brings back is of a former boot and binds nobody.

        Raises:
            StateError: the disk cannot be written.
        """
        path = self._path(uid)
        try:
            temporary_of(path).unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        except OSError as error:
            raise _failed("delete", path, error) from error

    def uids(self) -> set[ClaimUid]:
        """Return the UIDs of all claims with a record, and of those with half a record.

        Raises:
            StateError: the disk cannot be read.
        """
        try:
            names = [entry.name for entry in os.scandir(self._claims)]
        except OSError as error:
            raise _failed("read", self._claims, error) from error
        stems = {name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)}
        being_written = _SUFFIX + TEMPORARY_SUFFIX
        stems |= {name[1:].removesuffix(being_written) for name in names if name.startswith(".")}
        return {ClaimUid(stem) for stem in stems if _UID.fullmatch(stem)}

    def _path(self, uid: ClaimUid) -> Path:
        return self._claims / f"{check_uid(uid)}{_SUFFIX}"

    def _move_aside(self, path: Path, seen: os.stat_result, reason: str) -> None:
        target = self._quarantine / path.name
        number = 0
        while target.exists():
            number += 1
            target = self._quarantine / f"{path.name}.{number}"
        try:
            # Some read without the claim's lock, so a good record may have come in its place.
            if not os.path.samestat(path.stat(), seen):
                return
            path.replace(target)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _failed("quarantine", path, error) from error
        self.quarantined += 1
        log.error("record quarantined", file=str(target), reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecords:
    """What lies below a directory. `damaged` is by file name, with the reason."""

    records: tuple[ClaimRecord, ...]
    damaged: Mapping[str, str]


def stored_records(directory: Path) -> StoredRecords:
    """Return all records below a directory, for one who only looks: nothing is made or moved.

    Raises:
        StateError: the disk cannot be read.
    """
    records: list[ClaimRecord] = []
    damaged: dict[str, str] = {}
    for folder, is_sound in (("claims", True), ("quarantine", False)):
        try:
            paths = sorted((directory / folder).glob("[!.]*"))
            for path in paths:
                try:
                    record = decode(path.read_bytes())
                except FileNotFoundError:
                    continue  # unprepared meanwhile
                except StateError as error:
                    damaged[path.name] = str(error)
                    continue
                if is_sound:
                    records.append(record)
                else:
                    damaged[path.name] = f"it is not the record of claim {record.ref}"
        except OSError as error:
            raise _failed("read", directory / folder, error) from error
    return StoredRecords(records=tuple(records), damaged=damaged)


def _failed(verb: str, path: Path, error: OSError) -> StateError:
    return StateError(
        f"cannot {verb} {path}: {error.strerror or error}; check the free space and "
        "the permissions of the driver's directory on the node"
    )
