"""The CDI spec files of claims: one JSON file per claim, written whole or not at all.

In: a claim's UID and its `Spec`. Out: `<root>/k8s.gpu.nvidia.com-claim_<uid>.json`, the name that
the CDI library gives to transient specs. claims/ can write each file again at any time.

A container runtime watches the folder for Rename, Remove and Write events, and does not look again
by itself. So a new file is made under a temporary name in the same folder and renamed there; a file
that is moved or linked from elsewhere is never noticed. Only names that end in .json or .yaml are
loaded. If two files of equal rank name the same device, neither provides it.
"""

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from dra_driver.cdi.model import Edits, Mount, Spec
from dra_driver.cdi.spec import CLASS, VENDOR, render, render_edits
from dra_driver.errors import StateError
from dra_driver.host.files import (
    TEMPORARY_SUFFIX,
    Look,
    delete,
    look_of,
    read_whole,
    write_whole,
)

_PREFIX = f"{VENDOR}-{CLASS}_"
_SUFFIX = ".json"
_PEER_SUFFIX = ".yaml"  # NVIDIA's DRA driver names the same devices in such a file
_PEER_PATH = re.compile(rb"\bhostPath: (/\S+)$", re.MULTILINE)
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_WRITE_ATTEMPTS = 3
_FILE_MODE, _FOLDER_MODE = 0o644, 0o755  # rootless runtimes read them too
_MOST_KEPT = 64  # a node's common edits, its GPUs', and some that are new each time


class SpecStore:
    """The spec files of this driver's claims in one CDI folder, usually /var/run/cdi.

    Calls for different claims may run at the same time; calls for one claim are serialised by the
    caller. Every call except `delete_leftovers` touches only its claim's files.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        # Edits are the same for many claims. Checking and laying out those of a whole driver, 100
        # mounts, takes 0.9 ms; looking them up takes 0.06.
        self._edits_json = lru_cache(maxsize=_MOST_KEPT)(_edits_json)

    def write(self, uid: str, spec: Spec) -> None:
        """Write the spec of a claim. A file that already has these bytes is left alone.

        The file is not synced: after a power cut its containers are gone, and the kubelet prepares
        the claim again. Raises StateError if the spec breaks a rule of CDI or cannot be written.
        """
        path = self.path(uid)
        content = self._serialise(spec)
        try:
            stored = _read(path)
            if stored is None or stored[0] != content:
                self._replace(path, content)
            elif stat.S_IMODE(stored[1].st_mode) != _FILE_MODE:
                os.chmod(path, _FILE_MODE)
            delete(self.path(uid, _PEER_SUFFIX))
        except OSError as error:
            raise StateError(
                f"CDI spec {path} cannot be written: {error.strerror};"
                " check that the CDI folder is mounted, writable and not full"
            ) from error

    def exists(self, uid: str) -> bool:
        """Tell whether the claim has a spec file of this driver or of NVIDIA's DRA driver."""
        return any(os.path.isfile(self.path(uid, suffix)) for suffix in (_SUFFIX, _PEER_SUFFIX))

    def look(self, uid: str) -> Look | None:
        """Return what tells whether a claim's spec file has changed; None if a peer has one."""
        peers = look_of(self.path(uid, _PEER_SUFFIX))
        return look_of(self.path(uid)) if peers is None else None

    def is_peers(self, uid: str) -> bool:
        """Tell whether the claim's only spec file is one of NVIDIA's DRA driver."""
        is_theirs = os.path.isfile(self.path(uid, _PEER_SUFFIX))
        return is_theirs and not os.path.isfile(self.path(uid))

    def peer_edits(self, uid: str) -> Edits:
        """Return what names files on the host in a claim's spec file of NVIDIA's DRA driver."""
        stored = _read(self.path(uid, _PEER_SUFFIX))
        paths = map(os.fsdecode, _PEER_PATH.findall(stored[0]) if stored else ())
        return Edits(mounts=tuple(Mount(host_path=path, container_path=path) for path in paths))

    def delete(self, uid: str) -> None:
        """Delete the spec file of a claim, if there is one. Raises StateError if that fails."""
        path = self.path(uid)
        try:
            delete(path)
            delete(self.path(uid, _PEER_SUFFIX))
        except OSError as error:
            raise StateError(f"CDI spec {path} cannot be deleted: {error.strerror}") from error

    def uids(self) -> set[str]:
        """Return the UIDs of all claims that have a spec file; none if the folder is missing."""
        return self._of_files(_SUFFIX)

    def peers(self) -> set[str]:
        """Return the UIDs of the claims for which NVIDIA's DRA driver has written a spec file."""
        return self._of_files(_PEER_SUFFIX)

    def _of_files(self, suffix: str) -> set[str]:
        names = (name.removeprefix(_PREFIX) for name in self._names(_PREFIX))
        return {name.removesuffix(suffix) for name in names if name.endswith(suffix)}

    def delete_leftovers(self) -> int:
        """Delete temporary files that a killed driver left behind; return how many there were.

        Another driver that is writing at that moment notices this and writes its file again.
        """
        leftovers = [name for name in self._names("." + _PREFIX) if name.endswith(TEMPORARY_SUFFIX)]
        for name in leftovers:
            with suppress(OSError):
                (self._root / name).unlink(missing_ok=True)
        return len(leftovers)

    def _serialise(self, spec: Spec) -> bytes:
        """Return JSON with a line for each device node, mount and hook, for people who read it."""
        return f"{_layout(render(spec, self._edits_json))}\n".encode()

    def _names(self, prefix: str) -> Iterator[str]:
        try:
            with os.scandir(self._root) as entries:
                yield from (entry.name for entry in entries if entry.name.startswith(prefix))
        except FileNotFoundError:
            return
        except OSError as error:
            raise StateError(
                f"CDI folder {self._root} cannot be read: {error.strerror}; check that it is a "
                "folder, and that this process may list it (--cdi-root)"
            ) from error

    def path(self, uid: str, suffix: str = _SUFFIX) -> str:
        """Return the path of a claim's spec file. Raises StateError for an impossible UID."""
        if not _UID.fullmatch(uid):
            raise StateError(f"claim UID {uid!r} cannot be part of a file name")
        return f"{self._root}/{_PREFIX}{uid}{suffix}"

    def _replace(self, path: str, content: bytes) -> None:
        for attempt in range(1, _WRITE_ATTEMPTS + 1):
            try:
                write_whole(path, content, mode=_FILE_MODE, durable=False)
            except FileNotFoundError:
                # There is no folder yet, or another driver deleted the temporary file as a leftover
                # when it started during a rolling update.
                if attempt == _WRITE_ATTEMPTS:
                    raise
                _make_folder(self._root)
            else:
                return


def _make_folder(path: Path) -> None:
    """Make a folder that everybody may read, whatever the umask, unless it exists already."""
    try:
        path.mkdir()
    except FileExistsError:
        return
    except FileNotFoundError:
        _make_folder(path.parent)
        path.mkdir(exist_ok=True)
    path.chmod(_FOLDER_MODE)


def _read(path: str) -> tuple[bytes, os.stat_result] | None:
    """Return the bytes and the status of a spec file; None if it cannot be read."""
    with suppress(OSError):
        return read_whole(path)
    return None


class _Json(str):
    """JSON text that goes into a document as it is."""

    __slots__ = ()


def _edits_json(edits: Edits) -> _Json:
    return _Json(_layout(render_edits(edits)))


def _layout(value: object) -> str:
    """Return JSON text with a line for each member of a value that contains objects."""
    match value:
        case _Json():
            return value
        case dict() if any(map(_is_nested, value.values())):
            members = (f"{json.dumps(key)}: {_layout(member)}" for key, member in value.items())
            return _block("{", members, "}")
        case list() | tuple() if _is_nested(value):
            return _block("[", map(_layout, value), "]")
    return json.dumps(value)


def _block(opening: str, members: Iterable[str], closing: str) -> str:
    inside = ",\n".join(members).replace("\n", "\n ")  # within a JSON string there is no newline
    return f"{opening}\n {inside}\n{closing}"


def _is_nested(value: object) -> bool:
    """Tell whether a value is an object or a list of objects."""
    if isinstance(value, list | tuple):
        return bool(value) and isinstance(value[0], dict)
    return isinstance(value, dict | _Json)
