"""The CDI spec files of claims: one JSON file per claim, written whole or not at all.

In: a claim's UID and its `Spec`. Out: `<root>/k8s.gpu.nvidia.com-claim_<uid>.json`, the name that
the CDI library gives to transient specs. claims/ can write each file again at any time.

A container runtime watches the folder for Rename, Remove and Write events, and does not look again
by itself. So a new file is made under a temporary name in the same folder and renamed there; a file
that is moved or linked from elsewhere is never noticed. Only names that end in .json or .yaml are
loaded. If two files of equal rank name the same device, neither provides it.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from dra_driver.cdi.model import CLASS, VENDOR, Spec, render
from dra_driver.errors import StateError
from dra_driver.host.files import (
    TEMPORARY_SUFFIX,
    Look,
    delete,
    look_of,
    read_if_plain,
    write_whole,
)

_PREFIX = f"{VENDOR}-{CLASS}_"
_SUFFIX = ".json"
_PEER_SUFFIX = ".yaml"  # NVIDIA's DRA driver names the same devices in such a file
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_WRITE_ATTEMPTS = 3
_FILE_MODE, _FOLDER_MODE = 0o644, 0o755  # rootless runtimes read them too


class SpecStore:
    """The spec files of this driver's claims in one CDI folder, usually /var/run/cdi.

    Calls for different claims may run at the same time; calls for one claim are serialised by the
    caller. Every call except `delete_leftovers` touches only its claim's files.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.written: dict[str, Spec] = {}
        """What this process has written and not deleted since, by claim UID."""
        self._looks: dict[str, Look | None] = {}

    def write(self, uid: str, spec: Spec) -> None:
        """Write the spec of a claim. A file that already has these bytes is left alone.

        One that was written here, and looks as it did then, is not read again.

        The file is not synced: after a power cut its containers are gone, and the kubelet prepares
        the claim again. Raises StateError if the spec cannot be written.
        """
        path, theirs = self.path(uid), self.path(uid, _PEER_SUFFIX)
        look = look_of(path)
        is_known = look and look == self._looks.get(uid) and spec == self.written.get(uid)
        if is_known and not os.path.lexists(theirs):
            return
        content = msgspec.json.format(msgspec.json.encode(render(spec)), indent=1) + b"\n"
        try:
            stored = read_if_plain(path) if look else None
            if stored is None or stored[0] != content:
                self._replace(path, content)
            elif stat.S_IMODE(stored[1].st_mode) != _FILE_MODE:
                os.chmod(path, _FILE_MODE)
            delete(theirs)
            self.written[uid], self._looks[uid] = spec, look_of(path)
        except OSError as error:
            raise StateError(
                f"CDI spec {path} cannot be written: {error.strerror};"
                " check that the CDI folder is mounted, writable and not full"
            ) from error

    def exists(self, uid: str) -> bool:
        """Tell whether the claim has a spec file of this driver or of NVIDIA's DRA driver."""
        return any(os.path.isfile(self.path(uid, suffix)) for suffix in (_SUFFIX, _PEER_SUFFIX))

    def delete(self, uid: str) -> None:
        """Delete the spec file of a claim, if there is one. Raises StateError if that fails."""
        path = self.path(uid)
        self.written.pop(uid, None)
        self._looks.pop(uid, None)
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
