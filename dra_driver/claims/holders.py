"""Which claims hold a GPU, answered without reading the records of all claims.

    <directory>/gpus/<GPU UUID>/<claim UID>    an empty file: this claim may hold this GPU

A mark is made before the claim's record is written and removed after it was deleted, so whoever
holds a GPU has a mark. A mark alone proves nothing: its record decides, and a mark without a record
that holds the GPU is a trace of a crash. Callers hold the GPU's lock (claims/locks.py).
"""

import os
import re
from pathlib import Path

from dra_driver.claims.checkpoint import check_uid
from dra_driver.claims.model import ClaimUid
from dra_driver.devices.model import GpuUuid
from dra_driver.errors import StateError

_GPU = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,95}")


class GpuHolders:
    """The marks below one directory."""

    def __init__(self, directory: Path) -> None:
        self._root = directory / "gpus"

    def of(self, gpu: GpuUuid) -> tuple[ClaimUid, ...]:
        """Return the claims with a mark on the GPU, sorted.

        Raises:
            StateError: the disk cannot be read.
        """
        try:
            return tuple(sorted(map(ClaimUid, os.listdir(self._folder(gpu)))))  # noqa: PTH208
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise _failed(gpu, error) from error

    def add(self, gpu: GpuUuid, uid: ClaimUid) -> None:
        """Mark the GPU for the claim. There already is fine.

        Raises:
            StateError: the disk cannot be written.
        """
        mark = self._folder(gpu) / check_uid(uid)
        try:
            try:
                _make(mark)
            except FileNotFoundError:
                mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                _make(mark)
        except OSError as error:
            raise _failed(gpu, error) from error

    def remove(self, gpu: GpuUuid, uid: ClaimUid) -> None:
        """Remove the claim's mark. None is fine.

        Raises:
            StateError: the disk cannot be written.
        """
        try:
            (self._folder(gpu) / check_uid(uid)).unlink(missing_ok=True)
        except OSError as error:
            raise _failed(gpu, error) from error

    def uids(self) -> set[ClaimUid]:
        """Return the claims with a mark on any GPU.

        Raises:
            StateError: the disk cannot be read.
        """
        return {uid for gpu in self._gpus() for uid in self.of(gpu)}

    def forget(self, uid: ClaimUid) -> None:
        """Remove every mark of a claim. Needs the claim's lock, and that it has no record.

        Raises:
            StateError: the disk cannot be written.
        """
        for gpu in self._gpus():
            self.remove(gpu, uid)

    def _gpus(self) -> list[GpuUuid]:
        try:
            names = os.listdir(self._root)  # noqa: PTH208 (names are what is wanted)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _failed("GPUs", error) from error
        return [GpuUuid(name) for name in names if _GPU.fullmatch(name)]

    def _folder(self, gpu: GpuUuid) -> Path:
        if _GPU.fullmatch(gpu) is None:
            raise StateError(f"{gpu[:120]!r} is no GPU UUID")
        return self._root / gpu


def _make(mark: Path) -> None:
    os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _failed(gpu: str, error: OSError) -> StateError:
    return StateError(
        f"cannot keep the list of claims that hold {gpu}: {error}; check the free space and the "
        "permissions of the driver's directory on the node"
    )
