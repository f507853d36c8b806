"""Keeps on disk which claims may hold each GPU, and which MIG devices were made on it for whom.

    <directory>/gpus/<GPU UUID>/<claim UID>                    a mark: this claim may hold the GPU
    <directory>/mig/<boot id>/<GPU UUID>/<profile id>-<start>  a note: made here, for the UID in it
    <directory>/mig/<boot id>/<GPU UUID>/mode                  a note: MIG mode was turned on here

Marks are an index of the records by GPU, so that no call reads the records of all claims. A mark is
made before the claim's record is written and removed after the record is deleted, so a claim that
holds a GPU has a mark. A note is written before the first call that makes a device and removed
after the last call that destroys it. So a device without a note was made by others and is never
touched. Neither proves anything alone: the record decides, and without a record they are traces of
a crash. A reboot removes all MIG devices, which makes their notes void. Callers hold the GPU's lock
(claims/state/locks.py), except to list.
"""

import os
import re
import shutil
from pathlib import Path

from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.state.records import check_uid, disk_refused
from dra_driver.devices.model import GpuUuid, MigSlot
from dra_driver.errors import StateError
from dra_driver.host.files import Name, delete, write_whole

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,95}")
_SLOT = re.compile(r"(?P<profile>[0-9]+)-(?P<start>[0-9]+)")
_MODE = "mode"


class Ownership:
    """The marks, and the notes of this boot, below one directory. I/O errors become StateError."""

    def __init__(self, directory: Path, boot_id: str) -> None:
        self._marks = directory / "gpus"
        self._boots = directory / "mig"
        self._notes = self._boots / _checked(boot_id)

    # Marks: which claims may hold a GPU

    def holders(self, gpu: GpuUuid) -> tuple[ClaimUid, ...]:
        """Return the claims with a mark on the GPU, sorted."""
        return tuple(map(ClaimUid, _names(f"{self._marks}/{_checked(gpu)}")))

    def mark(self, gpu: GpuUuid, uid: ClaimUid) -> None:
        """Mark the GPU for the claim. An existing mark is fine."""
        mark = self._mark(gpu, uid)
        if os.path.exists(mark):
            return  # so that a read-only disk is no obstacle
        try:
            try:
                _touch(mark)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(mark), mode=0o700, exist_ok=True)
                _touch(mark)
        except OSError as error:
            raise _failed(mark, error) from error

    def unmark(self, gpu: GpuUuid, uid: ClaimUid) -> None:
        """Remove the claim's mark on the GPU. A missing mark is fine."""
        mark = self._mark(gpu, uid)
        try:
            delete(mark)
        except OSError as error:
            raise _failed(mark, error) from error

    def unmark_all(self, uid: ClaimUid) -> None:
        """Remove every mark of a claim without a record. The caller holds the claim's lock."""
        for gpu in self._marked_gpus():
            self.unmark(gpu, uid)

    def marked(self) -> set[ClaimUid]:
        """Return the claims with a mark on any GPU."""
        return {uid for gpu in self._marked_gpus() for uid in self.holders(gpu)}

    # Notes: what was made here

    def made(self, gpu: GpuUuid | None = None) -> dict[MigSlot, ClaimUid]:
        """Return the MIG devices made here, or being made, with their claims: of one GPU or all."""
        owners: dict[MigSlot, ClaimUid] = {}
        for uuid in self._noted_gpus() if gpu is None else [gpu]:
            for name in _names(self._notes / _checked(uuid)):
                slot = _slot(uuid, name)
                owner = None if slot is None else self.maker(slot)
                if slot is not None and owner is not None:
                    owners[slot] = owner
        return owners

    def maker(self, slot: MigSlot) -> ClaimUid | None:
        """Return the claim for which the MIG device at a place was made; None if not made here."""
        note = self._note(slot)
        try:
            return ClaimUid(note.read_text())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failed(note, error) from error

    def note(self, slot: MigSlot, uid: ClaimUid) -> None:
        """Note that a MIG device is about to be made for a claim."""
        _write(self._note(slot), uid)

    def forget(self, slot: MigSlot) -> None:
        """Forget a MIG device that was destroyed. A missing note is fine."""
        _remove(self._note(slot))

    def note_mode(self, gpu: GpuUuid) -> None:
        """Note that this driver is about to turn MIG mode on."""
        _write(self._mode(gpu), "")

    def turned_on(self, gpu: GpuUuid) -> bool:
        """Tell whether this driver turned MIG mode on, and has not turned it off since."""
        return os.path.exists(f"{self._notes}/{_checked(gpu)}/{_MODE}")

    def forget_mode(self, gpu: GpuUuid) -> None:
        """Forget that this driver turned MIG mode on."""
        _remove(self._mode(gpu))

    def gpus_turned_on(self) -> tuple[GpuUuid, ...]:
        """Return the GPUs whose MIG mode this driver turned on."""
        return tuple(gpu for gpu in self._noted_gpus() if self.turned_on(gpu))

    def forget_other_boots(self) -> None:
        """Remove the notes of earlier boots."""
        for name in _names(self._boots):
            if name != self._notes.name:
                shutil.rmtree(self._boots / name, ignore_errors=True)

    def _marked_gpus(self) -> list[GpuUuid]:
        return [GpuUuid(name) for name in _names(self._marks) if _NAME.fullmatch(name)]

    def _noted_gpus(self) -> list[GpuUuid]:
        return [GpuUuid(name) for name in _names(self._notes) if _NAME.fullmatch(name)]

    def _mark(self, gpu: GpuUuid, uid: ClaimUid) -> str:
        return f"{self._marks}/{_checked(gpu)}/{check_uid(uid)}"

    def _note(self, slot: MigSlot) -> Path:
        return self._notes / _checked(slot.gpu) / _slot_name(slot)

    def _mode(self, gpu: GpuUuid) -> Path:
        return self._notes / _checked(gpu) / _MODE


def _slot_name(slot: MigSlot) -> str:
    return f"{slot.profile_id}-{slot.start}"


def _slot(gpu: GpuUuid, name: str) -> MigSlot | None:
    """Return the slot whose note has this name; None if the name is that of another note."""
    match = _SLOT.fullmatch(name)
    if match is None:
        return None
    return MigSlot(gpu=gpu, profile_id=int(match["profile"]), start=int(match["start"]))


def _checked(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise StateError(
            f"{name[:120]!r} is not a valid name for a folder of the driver's directory"
        )
    return name


def _names(folder: Name) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _failed(folder, error) from error


def _write(note: Path, text: str) -> None:
    # By rename, so that nobody reads half a UID; not synced, because a power cut removes MIG
    # devices too.
    try:
        note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(note, text.encode(), mode=0o600, durable=False)
    except OSError as error:
        raise _failed(note, error) from error


def _remove(note: Path) -> None:
    try:
        note.unlink(missing_ok=True)
        if not os.listdir(note.parent):
            note.parent.rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        raise _failed(note, error) from error


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))


def _failed(path: Name, error: OSError) -> StateError:
    return disk_refused(f"keep track of who has which GPU: {path}", error)
