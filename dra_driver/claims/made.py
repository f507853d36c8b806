"""Which MIG devices this driver has made, for which claim, answered without reading records.

    <directory>/mig/<boot id>/<GPU UUID>/<profile id>-<start>    holds the claim's UID
    <directory>/mig/<boot id>/<GPU UUID>/mode                    MIG mode was turned on by us

A note is written before the first call that makes the device and removed after the last one that
destroys it, so what stands here and has no record is a trace of a crash; what does not stand here
was made by others and is never touched. A reboot takes all MIG devices away, and with them their
notes. Callers hold the GPU's lock (claims/locks.py), except to list.
"""

import os
import re
import shutil
from pathlib import Path

from dra_driver.claims.model import ClaimUid
from dra_driver.devices.model import GpuUuid, MigSlot
from dra_driver.errors import StateError
from dra_driver.files import write_whole

_SLOT = re.compile(r"(?P<profile>[0-9]+)-(?P<start>[0-9]+)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,95}")
_MODE = "mode"


class MadeHere:
    """The notes of this boot below one directory."""

    def __init__(self, directory: Path, boot_id: str) -> None:
        self._all = directory / "mig"
        self._root = self._all / _checked(boot_id)

    def forget_other_boots(self) -> None:
        """Remove the notes of earlier boots."""
        for folder in _listed(self._all):
            if folder != self._root:
                shutil.rmtree(folder, ignore_errors=True)

    def slots(self) -> frozenset[MigSlot]:
        """Return the places of all MIG devices that this driver made or is making.

        Raises:
            StateError: the disk cannot be read.
        """
        return frozenset(self.owners())

    def owners(self, gpu: GpuUuid | None = None) -> dict[MigSlot, ClaimUid]:
        """Return who each MIG device was made for, on one GPU or on all.

        Raises:
            StateError: the disk cannot be read.
        """
        found: dict[MigSlot, ClaimUid] = {}
        for folder in _listed(self._root) if gpu is None else [self._folder(gpu)]:
            for note in _listed(folder):
                match = _SLOT.fullmatch(note.name)
                text = _read(note) if match else None
                if match and text is not None:
                    slot = MigSlot(
                        gpu=GpuUuid(folder.name),
                        profile_id=int(match["profile"]),
                        start=int(match["start"]),
                    )
                    found[slot] = ClaimUid(text)
        return found

    def owner(self, slot: MigSlot) -> ClaimUid | None:
        """Return the claim that the MIG device at a place was made for; None if not by us."""
        text = _read(self._note(slot))
        return None if text is None else ClaimUid(text)

    def add(self, slot: MigSlot, uid: ClaimUid) -> None:
        """Note that a MIG device is about to be made for a claim.

        Raises:
            StateError: the disk cannot be written.
        """
        _write(self._note(slot), uid)

    def remove(self, slot: MigSlot) -> None:
        """Forget a MIG device that is destroyed. None is fine.

        Raises:
            StateError: the disk cannot be written.
        """
        _remove(self._note(slot))

    def note_mode(self, gpu: GpuUuid) -> None:
        """Note that MIG mode is about to be turned on by us.

        Raises:
            StateError: the disk cannot be written.
        """
        _write(self._folder(gpu) / _MODE, "")

    def has_mode(self, gpu: GpuUuid) -> bool:
        """Tell whether we turned MIG mode on, and have not turned it off since."""
        return (self._folder(gpu) / _MODE).exists()

    def forget_mode(self, gpu: GpuUuid) -> None:
        """Forget that we turned MIG mode on.

        Raises:
            StateError: the disk cannot be written.
        """
        _remove(self._folder(gpu) / _MODE)

    def gpus_with_mode(self) -> tuple[GpuUuid, ...]:
        """Return the GPUs whose MIG mode we turned on.

        Raises:
            StateError: the disk cannot be read.
        """
        return tuple(
            GpuUuid(folder.name) for folder in _listed(self._root) if (folder / _MODE).exists()
        )

    def _folder(self, gpu: GpuUuid) -> Path:
        return self._root / _checked(gpu)

    def _note(self, slot: MigSlot) -> Path:
        return self._folder(slot.gpu) / f"{slot.profile_id}-{slot.start}"


def _checked(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise StateError(f"{name[:120]!r} is no name for a folder of the driver's directory")
    return name


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _failed(folder, error) from error


def _read(note: Path) -> str | None:
    try:
        return note.read_text()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _failed(note, error) from error


def _write(note: Path, text: str) -> None:
    # By rename, so that nobody reads half a UID; not synced, because a power cut takes the MIG
    # devices away too.
    try:
        note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(note, text.encode(), mode=0o600, durable=False)
    except OSError as error:
        raise _failed(note, error) from error


def _remove(note: Path) -> None:
    try:
        note.unlink(missing_ok=True)
        if not os.listdir(note.parent):  # noqa: PTH208 (names are what is wanted)
            note.parent.rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        raise _failed(note, error) from error


def _failed(path: Path, error: OSError) -> StateError:
    return StateError(
        f"cannot keep the list of MIG devices made here: {path}: {error.strerror or error}; check "
        "the free space and the permissions of the driver's directory on the node"
    )
