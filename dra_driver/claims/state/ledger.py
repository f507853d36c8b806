"""The ledger of this node's claims: one record for each on disk, and the same in memory.

Who has which GPU, what was made there and what is still to be undone stands in the records and
nowhere else. Memory has them by GPU, so a call looks at the records on its GPUs, whatever the
number of all claims. What memory has counts only while its file looks the same. During a rolling
update another driver process may write records that memory does not have; the lock of a GPU says
so (`reread`, claims/state/locks.py). A caller that changes a record, or moves a damaged one aside,
holds the claim's lock; one that changes who has a GPU holds that GPU's lock, too.

Claims are often taken back when a disk is full, because the kubelet evicts pods then. So a release
begins with a change of the record's file mode, which needs no disk space: a record that nobody may
write (0400) is read as released, whatever its content. Writing it again ends that.
"""

import os
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import structlog

from dra_driver.claims.model.claim import UID, ClaimUid, check_uid
from dra_driver.claims.model.record import (
    ClaimRecord,
    MakeMigDevices,
    MigStep,
    RecordState,
    TurnMigModeOn,
    encode,
)
from dra_driver.claims.state.records import (
    SUFFIX,
    Entry,
    Unusable,
    disk_refused,
    entry_in,
    gpus_named,
)
from dra_driver.devices.device import Device, overlap
from dra_driver.devices.model import GpuUuid, MigSlot
from dra_driver.errors import StateError, VersionError
from dra_driver.host.files import (
    TEMPORARY_SUFFIX,
    Look,
    delete,
    listing_advice,
    look_of,
    temporary_of,
    write_whole,
)

log = structlog.get_logger()

_MODE, _RELEASED_MODE = 0o600, 0o400

_NO_GPU = GpuUuid("")
"""Stands for the GPUs of an unusable entry that names none."""


class Ledger:
    """The records of this node's claims. Calls may come from any thread, and other processes.

    Methods that read or write raise StateError if the disk refuses. `boot_id` is that of the kernel
    (/proc/sys/kernel/random/boot_id), `version` that of this driver, for the records that it
    writes. `quarantined` counts the damaged records that this process has moved aside.
    """

    def __init__(self, directory: Path, *, boot_id: str, version: str = "") -> None:
        self.directory = directory
        self.boot_id = boot_id
        self.quarantined = 0
        self._version = version
        self._claims = directory / "claims"
        self._quarantine = directory / "quarantine"
        self._lock = threading.RLock()
        self._known: dict[ClaimUid, tuple[Look, Entry]] = {}
        self._by_gpu: dict[GpuUuid, set[ClaimUid]] = {}
        self._is_complete = False
        self._unread: StateError | None = None
        self._unreadable: set[ClaimUid] = set()
        # If the disk is not writable yet, the first writer makes them.
        with suppress(OSError):
            self._make_folders()

    # One claim

    def read(self, uid: ClaimUid) -> ClaimRecord | None:
        """Return the claim's record, or None. A damaged record is moved aside and counts as none.

        The caller holds the claim's lock, so that a record being written is not moved. Raises
        VersionError if a newer version of this driver prepared the claim.
        """
        entry = self._current(uid)
        if not isinstance(entry, Unusable) or entry.newer is not None:
            return _usable(entry)
        if entry.is_empty:
            # A power cut came before its content was written, so there is nothing to keep.
            log.warning("record without content deleted", claim_uid=uid)
            self.delete(uid)
        else:
            self._move_aside(uid, entry.reason)
        return None

    def peek(self, uid: ClaimUid) -> ClaimRecord | None:
        """Return the claim's record, or None if it is missing or damaged. Changes nothing.

        It is the same object as last time if the file has not changed. Raises VersionError as
        `read` does.
        """
        return _usable(self._current(uid))

    def exists(self, uid: ClaimUid) -> bool:
        """Tell whether the claim has a record, readable or not."""
        return os.path.lexists(self._path(uid))

    def is_of_this_boot(self, record: ClaimRecord) -> bool:
        """Tell whether what the record says of hardware can still be true."""
        return record.boot_id == self.boot_id

    def is_prepared(self, record: ClaimRecord) -> bool:
        """Tell whether the claim is prepared, and in this boot."""
        return self.is_of_this_boot(record) and record.state is RecordState.PREPARED

    def holds(self, record: ClaimRecord) -> bool:
        """Tell whether the record keeps others from its GPUs; after a reboot nothing uses them."""
        return self.is_of_this_boot(record) and record.state is not RecordState.RELEASED

    def still_holds(self, record: ClaimRecord) -> bool:
        """Tell whether the claim has been prepared without interruption since a record was read.

        If it was prepared again in between, the disk has another record, even with equal content.
        """
        try:
            return self.is_prepared(record) and self.peek(record.ref.uid) is record
        except StateError:
            return False

    def write(self, record: ClaimRecord) -> None:
        """Store the record so that it outlives a crash.

        It outlives a power cut, too, if it names what that leaves and nobody finds without it: MIG
        modes, and what earlier claims left. What sharing sets does not survive a power cut, or is
        found without a record, as files are. Containers and CDI specs do not survive either. So a
        claim that loses its record is like one that is allocated and not prepared yet: the kubelet
        prepares it in the new boot, or unprepares it.
        """
        path, data = self._path(record.ref.uid), encode(record, self._version)
        durable = bool(record.pending) or any(isinstance(step, MigStep) for step in record.steps)
        try:
            try:
                write_whole(path, data, mode=_MODE, durable=durable)
            except FileNotFoundError:
                self._make_folders()
                write_whole(path, data, mode=_MODE, durable=durable)
        except OSError as error:
            raise disk_refused(f"write {path}", error) from error
        self._keep(record.ref.uid, look_of(path), record)

    def release(self, uid: ClaimUid) -> None:
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
        self._keep(uid, None, None)

    # All claims

    def uids(self) -> set[ClaimUid]:
        """Return the UIDs of all claims with a record, even one that is only partly written."""
        names = names_in(self._claims)
        stems = {name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)}
        being_written = SUFFIX + TEMPORARY_SUFFIX
        hidden = (name[1:] for name in names if name.startswith("."))
        stems |= {
            name.removesuffix(being_written) for name in hidden if name.endswith(being_written)
        }
        return {ClaimUid(stem) for stem in stems if UID.fullmatch(stem)}

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

    def prepared(self) -> Iterator[ClaimRecord]:
        """Yield the readable records of the claims that are prepared in this boot."""
        return filter(self.is_prepared, self.readable())

    def anything_held(self) -> bool:
        """Tell whether any claim of this node holds anything, as far as this version can read.

        Raises StateError if no readable record holds anything and another one cannot be read.
        """
        # Readable records come first: others matter only if no readable one holds anything.
        if any(map(self.holds, self.readable())):
            return True
        every = map(self._current, self._uids_there())
        return any(isinstance(entry, ClaimRecord) and self.holds(entry) for entry in every)

    # By GPU

    def reread(self) -> None:
        """Have memory compared with the disk before the next answer about a GPU."""
        self._is_complete = False

    def records_on(self, gpu: GpuUuid) -> list[ClaimRecord]:
        """Return the readable records that are about a GPU: of claims that have it or left it."""
        return [entry for entry in self._on(gpu) if isinstance(entry, ClaimRecord)]

    def holders_of(self, gpu: GpuUuid) -> list[ClaimRecord]:
        """Return the readable records of the claims that hold something of a GPU."""
        return [
            record
            for record in self.records_on(gpu)
            if self.holds(record) and gpu in record.held_gpus
        ]

    def users_of(self, gpu: GpuUuid) -> list[ClaimRecord]:
        """Return the records of a GPU's claims, including those that a reboot interrupted."""
        there = self.records_on(gpu)
        return [record for record in there if record.state is not RecordState.RELEASED]

    def newer_on(self, gpu: GpuUuid, but: ClaimUid) -> VersionError | None:
        """Return why only a newer version can read another claim's record about a GPU, if so."""
        there = (entry for entry in self._on(gpu) if isinstance(entry, Unusable))
        return next((entry.newer for entry in there if entry.newer and entry.uid != but), None)

    def lost_on(self, gpus: Collection[GpuUuid]) -> tuple[GpuUuid, ...]:
        """Return those of the GPUs that a damaged record, in its place or in quarantine, is about.

        Something may be set there for its claim, unless the claim has been prepared again. A record
        that names no GPU may have been about any.
        """
        lost = {
            gpu
            for gpu in gpus
            for entry in (*self._on(gpu), *self._on(_NO_GPU))
            if isinstance(entry, Unusable) and not entry.newer and not entry.is_empty
        }
        for name in names_in(self._quarantine):
            if not isinstance(self._current(ClaimUid(name.partition(SUFFIX)[0])), ClaimRecord):
                lost |= gpus_named(self._quarantine / name) or set(gpus)
        return tuple(gpu for gpu in gpus if gpu in lost)

    def is_about(self, gpu: GpuUuid) -> bool:
        """Tell whether any record is about a GPU, readable or not.

        Raises StateError if none is known, and the disk refuses to read one.
        """
        if self._on(gpu):
            return True
        if self._unread is not None:
            raise self._unread
        return False

    def holds_any(
        self, gpus: Iterable[GpuUuid], devices: Collection[Device], but: ClaimUid
    ) -> bool:
        """Tell whether another claim holds any part of these devices, which are on these GPUs."""
        return any(
            self.newer_on(gpu, but) is not None
            or any(
                record.ref.uid != but and overlap(devices, record.held)
                for record in self.holders_of(gpu)
            )
            for gpu in gpus
        )

    def made(self, gpu: GpuUuid | None = None) -> dict[MigSlot, set[ClaimUid]]:
        """Return the places of MIG devices made here, or being made, and for which claims.

        They are those of a GPU, or all. NVIDIA's driver can have made one for several claims.
        """
        made: dict[MigSlot, set[ClaimUid]] = {}
        for record in self.readable() if gpu is None else self.records_on(gpu):
            for step in record.all_steps if self.is_of_this_boot(record) else ():
                if isinstance(step, MakeMigDevices) and gpu in (None, step.gpu):
                    for place in step.places:
                        made.setdefault(place.slot, set()).add(record.ref.uid)
        return made

    def turned_on(self, gpu: GpuUuid | None = None) -> dict[GpuUuid, set[ClaimUid]]:
        """Return the GPUs whose MIG mode this driver turned on, and for which claims."""
        turned_on: dict[GpuUuid, set[ClaimUid]] = {}
        for record in self.readable() if gpu is None else self.records_on(gpu):
            for step in record.all_steps if self.is_of_this_boot(record) else ():
                if isinstance(step, TurnMigModeOn) and gpu in (None, step.gpu):
                    turned_on.setdefault(step.gpu, set()).add(record.ref.uid)
        return turned_on

    # Memory and disk

    def _on(self, gpu: GpuUuid) -> list[Entry]:
        with self._lock:
            if not self._is_complete:
                self._is_complete = True
                self._unread = None
                for uid in self._uids_there():
                    try:
                        self._current(uid)
                    except StateError as error:  # it keeps no claim of another GPU from its own
                        self._is_complete, self._unread = False, error
            uids = sorted(self._by_gpu.get(gpu, ()))
        entries = (self._current(uid) for uid in uids)
        return [entry for entry in entries if entry is not None and gpu in _gpus_of(entry)]

    def _uids_there(self) -> list[ClaimUid]:
        """Return the claims with a record, and forget those that no longer have one."""
        uids = self.uids()
        for gone in self._known.keys() - uids:
            self._keep(gone, None, None)
        return sorted(uids)

    def _current(self, uid: ClaimUid) -> Entry | None:
        """Return what is stored: the same object as last time, if the file has not changed."""
        path = self._path(uid)
        seen, known = look_of(path), self._known.get(uid)
        if known is not None and known[0] == seen:
            return known[1]
        try:
            entry = entry_in(path, uid)
        except OSError as error:
            raise disk_refused(f"read {path}", error) from error
        self._keep(uid, seen, entry)
        return entry

    def _keep(self, uid: ClaimUid, seen: Look | None, entry: Entry | None) -> None:
        with self._lock:
            former = self._known.pop(uid, None)
            for gpu in _gpus_of(former[1]) if former else ():
                self._by_gpu[gpu].discard(uid)
            if entry is None or seen is None:
                return
            self._known[uid] = (seen, entry)
            for gpu in _gpus_of(entry):
                self._by_gpu.setdefault(gpu, set()).add(uid)

    def _make_folders(self) -> None:
        for folder in (self._claims.parent, self._claims, self._quarantine):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _path(self, uid: ClaimUid) -> str:
        return f"{self._claims}/{check_uid(uid)}{SUFFIX}"

    def _move_aside(self, uid: ClaimUid, reason: str) -> None:
        path = Path(self._path(uid))
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
        self._keep(uid, None, None)
        self.quarantined += 1
        log.error("record quarantined", file=str(target), reason=reason)


def _gpus_of(entry: Entry) -> Collection[GpuUuid]:
    return entry.gpus if isinstance(entry, ClaimRecord) else entry.gpus or (_NO_GPU,)


def _usable(entry: Entry | None) -> ClaimRecord | None:
    """Return a record; None if it is damaged. Raises VersionError if a newer version wrote it."""
    if not isinstance(entry, Unusable):
        return entry
    if entry.newer is not None:
        raise entry.newer
    return None


def names_in(folder: Path) -> list[str]:
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
