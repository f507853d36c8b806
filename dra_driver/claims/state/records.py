"""The records of all claims of this node on disk: one file per claim UID.

    <directory>/claims/<uid>.json       the record (format: claims/model/record.py)
    <directory>/claims/.<uid>.json.tmp  being written
    <directory>/quarantine/<uid>.json   damaged, moved aside for a person to look at

Each call touches the files of one claim, so its cost does not depend on how many there are. What is
kept in memory counts only while its file looks the same: during a rolling update two driver
processes run side by side, and the kubelet may send Prepare to one and Unprepare to the other. A
caller that changes a record, or moves a damaged one aside, holds the claim's lock
(claims/state/locks.py); reading needs no lock.

Claims are often taken back when a disk is full, because the kubelet evicts pods then. So a release
begins with a change of the record's file mode, which needs no disk space: a record that nobody may
write (0400) is read as released, whatever its content. Writing it again ends that.
"""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import structlog
from msgspec import Struct

from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.model.record import ClaimRecord, decode, encode, released, written_by
from dra_driver.errors import ConfigError, StateError, VersionError
from dra_driver.host.files import (
    TEMPORARY_SUFFIX,
    Look,
    delete,
    listing_advice,
    look_of,
    read_whole,
    temporary_of,
    write_whole,
)

log = structlog.get_logger()

_UID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
"""What may become a file name and part of a CDI device name. Kubernetes' own UIDs are RFC 4122."""

_SUFFIX = ".json"
_MODE, _RELEASED_MODE = 0o600, 0o400

_MOST_PEEKED = 4096
"""The number of records kept in memory, 4 KiB each: a kubelet runs pods for fewer claims."""


def check_uid(uid: str) -> ClaimUid:
    """Return the claim UID if it is safe as a file name, else raise ConfigError."""
    if _UID.fullmatch(uid) is None:
        raise ConfigError(
            f"claim UID {uid[:160]!r} is not a valid UID: it must have 1 to 128 letters, digits, "
            "'-', '_' and '.'"
        )
    return ClaimUid(uid)


def disk_refused(what: str, error: OSError) -> StateError:
    """Return the error for an operation that the disk of the driver's directory refused."""
    return StateError(
        f"cannot {what}: {error.strerror or error}; check the free space and the permissions of "
        "the driver's directory on the node"
    )


class RecordStore:
    """The record files below one directory. Threads and processes may share it under claims' locks.

    Methods that read or write raise StateError if the disk refuses. `quarantined` counts the
    damaged records that this process has moved aside.
    """

    def __init__(self, directory: Path, version: str = "") -> None:
        """Make the folders; `version` is this driver's, for the records that it writes."""
        self._version = version
        self.directory = directory
        self._claims = directory / "claims"
        self._quarantine = directory / "quarantine"
        self.quarantined = 0
        self._peeked: dict[ClaimUid, tuple[Look, ClaimRecord]] = {}
        self._unreadable: set[ClaimUid] = set()
        # If the disk is not writable yet, the first writer makes them.
        with suppress(OSError):
            self._make_folders()

    def read(self, uid: ClaimUid) -> ClaimRecord | None:
        """Return the claim's record, or None. A damaged record is moved aside and counts as none.

        The caller holds the claim's lock, so that a record being written is not moved. Raises
        VersionError if a newer version of this driver prepared the claim.
        """
        record = self._current(uid)
        if not isinstance(record, _Damaged):
            return record
        if record.is_empty:
            # A power cut came before its content was written, so there is nothing to keep.
            log.warning("record without content deleted", claim_uid=uid)
            self.delete(uid)
        else:
            self._move_aside(Path(self._path(uid)), record.reason)
        return None

    def peek(self, uid: ClaimUid) -> ClaimRecord | None:
        """Return the claim's record, or None if it is missing or damaged. Changes nothing.

        Raises VersionError as `read` does.
        """
        record = self._current(uid)
        return None if isinstance(record, _Damaged) else record

    def has_lost(self, uid: ClaimUid) -> bool:
        """Tell whether a claim without a readable record had one: it is damaged, or in quarantine.

        Otherwise nothing was set for the claim, or all of it was undone, or a power cut ended it.
        """
        record = self._current(uid)
        if isinstance(record, _Damaged):
            return not record.is_empty
        return record is None and os.path.exists(f"{self._quarantine}/{check_uid(uid)}{_SUFFIX}")

    def _current(self, uid: ClaimUid) -> "ClaimRecord | _Damaged | None":
        """Return what is stored: the same object as last time, if the file has not changed."""
        # A claim that shares a GPU reads the records of all others that do, so they are cached.
        seen = look_of(self._path(uid))
        known = self._peeked.get(uid)
        if seen is not None and known is not None and known[0] == seen:
            return known[1]
        record = self._look(uid)
        if isinstance(record, _Damaged) or record is None:
            self._peeked.pop(uid, None)
        else:
            self._keep(record, seen)
        return record

    def _keep(self, record: ClaimRecord, seen: Look | None) -> None:
        if len(self._peeked) >= _MOST_PEEKED:
            self._peeked.clear()
        if seen is not None:
            self._peeked[record.ref.uid] = (seen, record)

    def readable(self) -> Iterator[ClaimRecord]:
        """Yield the records that this version can read. Changes nothing.

        A file that the disk refuses to read is logged once and skipped: others do not wait for it.
        """
        uids = self.uids()
        self._unreadable &= uids
        for uid in sorted(uids):
            try:
                record = self.peek(uid)
            except VersionError:
                continue
            except StateError as error:
                if uid not in self._unreadable:
                    log.warning("record not readable", claim_uid=uid, reason=str(error))
                self._unreadable.add(uid)
                continue
            self._unreadable.discard(uid)
            if record is not None:
                yield record

    def all(self) -> Iterator[ClaimRecord]:
        """Yield the same records, but raise StateError if the disk refuses to read one."""
        for uid in sorted(self.uids()):
            with suppress(VersionError):
                record = self.peek(uid)
                if record is not None:
                    yield record

    def note_release(self, uid: ClaimUid) -> None:
        """Note that the claim is being taken back: its record is read as released from now on.

        A missing record is fine. Not synced: a power cut ends all that used the claim's devices.
        """
        path = self._path(uid)
        try:
            os.chmod(path, _RELEASED_MODE)
        except FileNotFoundError:
            return
        except OSError as error:
            raise disk_refused(f"change {path}", error) from error

    def write(self, record: ClaimRecord, *, durable: bool = True) -> None:
        """Store the record so that it outlives a crash, and a power cut if `durable`."""
        path, data = self._path(record.ref.uid), encode(record, self._version)
        try:
            try:
                write_whole(path, data, mode=_MODE, durable=durable)
            except FileNotFoundError:
                self._make_folders()
                write_whole(path, data, mode=_MODE, durable=durable)
        except OSError as error:
            raise disk_refused(f"write {path}", error) from error
        self._keep(record, look_of(path))

    def delete(self, uid: ClaimUid) -> None:
        """Remove the claim's record and what a crash may have left beside it. None is fine.

        Not synced: a record that returns after a power cut is of a former boot and holds nothing.
        """
        path = self._path(uid)
        try:
            delete(temporary_of(path))
            delete(path)
        except OSError as error:
            raise disk_refused(f"delete {path}", error) from error
        self._peeked.pop(uid, None)

    def uids(self) -> set[ClaimUid]:
        """Return the UIDs of all claims with a record, even one that is only partly written."""
        names = _names(self._claims)
        stems = {name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)}
        being_written = _SUFFIX + TEMPORARY_SUFFIX
        hidden = (name[1:] for name in names if name.startswith("."))
        stems |= {
            name.removesuffix(being_written) for name in hidden if name.endswith(being_written)
        }
        return {ClaimUid(stem) for stem in stems if _UID.fullmatch(stem)}

    def _make_folders(self) -> None:
        for folder in (self._claims.parent, self._claims, self._quarantine):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _path(self, uid: ClaimUid) -> str:
        return f"{self._claims}/{check_uid(uid)}{_SUFFIX}"

    def _look(self, uid: ClaimUid) -> "ClaimRecord | _Damaged | None":
        path = self._path(uid)
        try:
            contents = read_whole(path)
        except OSError as error:
            raise disk_refused(f"read {path}", error) from error
        if contents is None:
            return None
        if not contents[0]:
            return _Damaged(reason="it is empty", is_empty=True)
        try:
            record = _as_stored(*contents)
        except VersionError as error:
            raise VersionError(
                f"a newer version of this driver prepared claim UID {uid} "
                f"({_newer(contents[0], error)}); its record "
                f"{path} and its devices are left as they are: install that version again, or "
                "drain the node with it before an older one is installed"
            ) from error
        except StateError as error:
            return _Damaged(reason=str(error))
        if record.ref.uid != uid:
            return _Damaged(reason=f"it is the record of claim UID {record.ref.uid}")
        return record

    def _move_aside(self, path: Path, reason: str) -> None:
        target = self._quarantine / path.name
        number = 0
        while target.exists():
            number += 1
            target = self._quarantine / f"{path.name}.{number}"
        try:
            self._make_folders()
            path.replace(target)
        except OSError as error:
            raise disk_refused(f"quarantine {path}", error) from error
        self.quarantined += 1
        log.error("record quarantined", file=str(target), reason=reason)


class _Damaged(Struct, frozen=True, kw_only=True):
    """A record file with unusable content."""

    reason: str
    is_empty: bool = False


def _as_stored(data: bytes, seen: os.stat_result) -> ClaimRecord:
    """Return the record in a file; raises StateError if it is damaged."""
    record = decode(data)
    return record if seen.st_mode & stat.S_IWUSR else released(record, seen.st_ctime)


def _newer(data: bytes, error: VersionError) -> str:
    """Return why a record cannot be read here, and which version of the driver can read it."""
    version = written_by(data)
    return f"{error}; version {version} of the driver wrote it" if version else str(error)


class StoredRecords(Struct, frozen=True, kw_only=True):
    """The records below a directory. `damaged` maps file names to reasons.

    `newer` has the names of files that are not damaged, but of a newer version of this driver.
    """

    records: tuple[ClaimRecord, ...]
    damaged: Mapping[str, str]
    newer: frozenset[str] = frozenset()


def written_at(directory: Path, uid: ClaimUid) -> float:
    """Return when a claim's record was written, in seconds since the epoch; 0 without one."""
    try:
        return (directory / "claims" / f"{check_uid(uid)}{_SUFFIX}").stat().st_mtime
    except OSError:
        return 0.0


def stored_records(directory: Path) -> StoredRecords:
    """Return all records below a directory, without making or moving anything.

    Raises StateError if a folder cannot be listed, because that does not mean that it is empty.
    """
    records: list[ClaimRecord] = []
    damaged: dict[str, str] = {}
    newer: set[str] = set()
    for folder, is_sound in ((directory / "claims", True), (directory / "quarantine", False)):
        for name in sorted(_names(folder)):
            if name.startswith("."):
                continue
            try:
                contents = read_whole(folder / name)
            except OSError as error:
                damaged[name] = str(disk_refused(f"read {folder / name}", error))
                continue
            if contents is None or not contents[0]:
                continue  # unprepared meanwhile, or written just before a power cut
            try:
                record = _as_stored(*contents)
            except VersionError as error:
                newer.add(name)
                damaged[name] = f"not damaged, but of a newer version: {_newer(contents[0], error)}"
                continue
            except StateError as error:
                damaged[name] = str(error)
                continue
            if is_sound:
                records.append(record)
            else:
                damaged[name] = f"it is not the record of claim {record.ref}"
    return StoredRecords(records=tuple(records), damaged=damaged, newer=frozenset(newer))


def _names(folder: Path) -> list[str]:
    """Return the names in a folder; raises StateError if it cannot be listed."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StateError(
            f"cannot list the records of claims in {folder}: {error.strerror or error}; "
            f"{listing_advice(error)}"
        ) from error
