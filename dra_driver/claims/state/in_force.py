"""The divisions by which shares of this node's devices were last offered, kept on disk.

In: the divisions that are published. Out: the same after a restart or a reboot, whatever the share
config says by then: claims may have been allocated shares that no driver has heard of yet. A file
that is damaged is as none. Two drivers of one node (an update without a gap) read what the other
one has written.
"""

import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import structlog

from dra_driver.claims.model.devices import division_json, division_of, part_json, part_of
from dra_driver.devices.kinds import GpuPart
from dra_driver.devices.shares import Division
from dra_driver.errors import StateError
from dra_driver.host.envelope import MALFORMED, seal, unseal
from dra_driver.host.files import read_whole, write_whole

FILE = "divisions.json"
"""Its name in the driver's directory."""

_Seen = tuple[int, int, int] | None

log = structlog.get_logger()


class DivisionsInForce:
    """The divisions in force. Methods may be called from any thread; none raises."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._lock = threading.Lock()
        self._divisions: Mapping[GpuPart, Division] = {}
        self._seen: _Seen = None
        self._is_unwritten = False

    def current(self) -> Mapping[GpuPart, Division]:
        """Return them by device."""
        with self._lock:
            return MappingProxyType(self._current())

    def change(self, divisions: Mapping[GpuPart, Division | None]) -> None:
        """Put divisions in force; None ends the one that a device has.

        On a disk that cannot be written they hold as long as this process, and the next change
        writes them.
        """
        with self._lock:
            before = self._current()
            changed = {**before, **divisions}
            now = {part: one for part, one in changed.items() if one is not None}
            if now == before and not self._is_unwritten:
                return
            self._divisions = now
            self._write()

    def _current(self) -> Mapping[GpuPart, Division]:
        seen = self._look()
        if seen != self._seen and not self._is_unwritten:
            self._seen = seen
            self._divisions = self._read()
        return self._divisions

    def _look(self) -> _Seen:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _read(self) -> Mapping[GpuPart, Division]:
        try:
            found = read_whole(self._path)
            if found is None:
                return {}
            entries = unseal(found[0])["devices"]
            return {part_of(one["part"]): division_of(one["division"]) for one in entries}
        except (OSError, StateError, *MALFORMED) as error:
            log.warning("divisions in force not read", path=str(self._path), reason=str(error))
            return {}

    def _write(self) -> None:
        entries = [
            {"part": part_json(part), "division": division_json(one)}
            for part, one in self._divisions.items()
        ]
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, seal({"devices": entries}), mode=0o600, durable=True)
        except OSError as error:
            if not self._is_unwritten:
                reason = str(error.strerror or error)
                log.warning("divisions in force not written", path=str(self._path), reason=reason)
            self._is_unwritten = True
        else:
            self._is_unwritten = False
            self._seen = self._look()
