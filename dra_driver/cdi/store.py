"""The CDI spec files of claims: one JSON file per claim, written whole or not at all.

In: a claim's UID and its `Spec`. Out: `<root>/k8s.gpu.nvidia.com-claim_<uid>.json`, the name that
the CDI library gives transient specs. Files are derived: claims/ can write each again.

A container runtime watches the folder for Rename, Remove and Write events, and does not look again
by itself. So a new file is made under a temporary name in the very same folder and renamed there;
one renamed in from elsewhere, or linked, is never noticed. Only names that end in .json or .yaml
are loaded, and two files of equal rank that name one device make it vanish.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dra_driver.cdi.model import Edits, Spec
from dra_driver.cdi.spec import CLASS, VENDOR, render, render_edits
from dra_driver.errors import StateError
from dra_driver.files import TEMPORARY_SUFFIX, read_whole, write_whole

_PREFIX = f"{VENDOR}-{CLASS}_"
_SUFFIX = ".json"
_PEER_SUFFIX = ".yaml"  # NVIDIA's own driver names the same devices in a file of this ending
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_WRITE_ATTEMPTS = 3
_MOST_KEPT = 64  # a node's common edits and its GPUs', and some that are new each time
_NEWLINE = "\n"
_INDENT = " "


class SpecStore:
    """The spec files of this driver's claims in one CDI folder, usually /var/run/cdi.

    Calls for different claims may run at the same time; calls for one claim are serialised by the
    caller. Every call but `delete_leftovers` touches only the file of its claim.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._kept: dict[int, tuple[Edits, _Laid]] = {}

    def write(self, uid: str, spec: Spec) -> None:
        """Write the spec of a claim. A file that holds these bytes already is left alone.

        It is not synced: a power cut takes along what the spec was for, and the kubelet prepares
        the claim anew after it.

        Raises:
            StateError: the spec breaks a rule of CDI, or the file cannot be written.
        """
        path = self._path(uid)
        content = self._serialise(spec)
        try:
            found = read_whole(path)
            if found is None or found[0] != content:
                self._replace(path, content)
            path.with_name(path.stem + _PEER_SUFFIX).unlink(missing_ok=True)
        except OSError as error:
            raise StateError(
                f"CDI spec {path} cannot be written: {error.strerror};"
                " check that the CDI folder is mounted, writable and not full"
            ) from error

    def exists(self, uid: str) -> bool:
        """Tell whether a spec file of this driver exists for the claim."""
        return self._path(uid).is_file()

    def delete(self, uid: str) -> None:
        """Delete the spec file of a claim; one that is absent is fine.

        Raises:
            StateError: the file is there and cannot be deleted.
        """
        path = self._path(uid)
        try:
            path.unlink(missing_ok=True)
            path.with_name(path.stem + _PEER_SUFFIX).unlink(missing_ok=True)
        except OSError as error:
            raise StateError(f"CDI spec {path} cannot be deleted: {error.strerror}") from error

    def uids(self) -> set[str]:
        """Return the UIDs of all claims that have a spec file. An absent folder holds none."""
        return {
            name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
            for name in self._names(_PREFIX)
            if name.endswith(_SUFFIX)
        }

    def delete_leftovers(self) -> int:
        """Delete temporary files that a killed driver left behind; return how many there were.

        Meant for the start of the driver. A second driver that is writing at that moment notices
        that its temporary file has gone and writes it again.
        """
        leftovers = [name for name in self._names("." + _PREFIX) if name.endswith(TEMPORARY_SUFFIX)]
        for name in leftovers:
            with suppress(OSError):
                (self._root / name).unlink(missing_ok=True)
        return len(leftovers)

    def _serialise(self, spec: Spec) -> bytes:
        """Return JSON with one device node, mount or hook per line, for people who open the file.

        The edits of a node and of a GPU are the same objects from claim to claim.
        """
        return (_layout(render(spec, self._laid), _NEWLINE) + _NEWLINE).encode()

    def _laid(self, edits: Edits) -> "_Laid":
        """Return checked edits as they stand in a spec; what was laid out lately is kept."""
        known = self._kept.get(id(edits))
        if known is None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            known = edits, _Laid(_layout(render_edits(edits), _NEWLINE))
            self._kept[id(edits)] = known  # with the object, so that its id stays its own
        return known[1]

    def _names(self, prefix: str) -> Iterator[str]:
        try:
            with os.scandir(self._root) as entries:
                yield from (entry.name for entry in entries if entry.name.startswith(prefix))
        except FileNotFoundError:
            return
        except OSError as error:
            raise StateError(f"CDI folder {self._root} cannot be read: {error.strerror}") from error

    def _path(self, uid: str) -> Path:
        if not _UID.fullmatch(uid):
            raise StateError(f"claim UID {uid!r} cannot be part of a file name")
        return self._root / f"{_PREFIX}{uid}{_SUFFIX}"

    def _replace(self, path: Path, content: bytes) -> None:
        for attempt in range(1, _WRITE_ATTEMPTS + 1):
            try:
                # 0644, because rootless runtimes read it too.
                write_whole(path, content, mode=0o644, durable=False)
            except FileNotFoundError:
                # There is no folder yet, or another driver's delete_leftovers took the temporary
                # file, as it starts during a rolling update.
                if attempt == _WRITE_ATTEMPTS:
                    raise
                self._root.mkdir(mode=0o755, parents=True, exist_ok=True)
            else:
                return


class _Laid(str):
    """JSON text that is laid out already, as if nothing were around it."""

    __slots__ = ()


def _layout(value: object, newline: str) -> str:
    if isinstance(value, _Laid):
        return value.replace(_NEWLINE, newline)  # within a JSON string there is none
    deeper = newline + _INDENT
    if isinstance(value, dict) and any(_holds_objects(member) for member in value.values()):
        members = (f"{json.dumps(key)}: {_layout(member, deeper)}" for key, member in value.items())
        return "{" + deeper + f",{deeper}".join(members) + newline + "}"
    if isinstance(value, list) and _holds_objects(value):
        return "[" + deeper + f",{deeper}".join(_layout(m, deeper) for m in value) + newline + "]"
    return json.dumps(value)


def _holds_objects(value: object) -> bool:
    """Tell an object, or a list of objects, from a list of plain values."""
    return isinstance(value, dict | _Laid) or (
        isinstance(value, list) and bool(value) and isinstance(value[0], dict)
    )
