"""Writes the files that tell containers about their devices, one for each request (KEP-5304).

    <directory>/device-metadata/<claim UID>/<request>.json

In: the record of a claim, and its GPUs as they are now. Out: files, written whole or not at all,
and their paths in containers. Format and paths are those of Kubernetes' own library for drivers
(k8s.io/dynamic-resource-allocation, api/metadata): a sequence of JSON objects, one for each version
of the API, newest first, with the same content. A reader takes the first version that it knows.
Attributes are those of the device's ResourceSlice, and the UUID of a MIG device that was made for
the claim, which no slice has.

A path in a container is made of names that tenants choose. They are checked here, so that the path
stays below one folder within the claim's own containers. On the node the folder's name is the
claim's UID, so that a claim never gets the files of an earlier claim of the same name. The files
are derived: claims/prepare/specs.py writes them again where they are missing. Each file is mounted
by itself, so a container keeps the one that it was started with; a file written later has a higher
generation and is for containers that start later.
"""

import os
import re
import shutil
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import structlog

from dra_driver.cdi.model import Mount
from dra_driver.claims.model.claim import ClaimUid, check_uid, is_label
from dra_driver.claims.model.record import ClaimRecord, DeviceRecord
from dra_driver.claims.state.records import disk_refused
from dra_driver.devices.device import NodeDevice
from dra_driver.devices.model import Gpu, GpuUuid, Inventory
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.errors import ConfigError
from dra_driver.host.files import Look, delete, entries_of, look_of, read_if_plain, write_whole
from dra_driver.slices.attributes import Attributes, describe

log = structlog.get_logger()

VERSIONS = ("v1beta1", "v1alpha1")
"""Versions of the API metadata.resource.k8s.io, newest first; both have the same fields."""

CONTAINER_FOLDER = "/var/run/kubernetes.io/dra-device-attributes"
"""The folder below which containers find the files of all drivers."""

_FILE = f"{DRIVER_NAME}-metadata.json"
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")

FOLDER = "device-metadata"
"""The folder's name below the driver's directory."""

_FILE_MODE, _FOLDER_MODE = 0o644, 0o755  # containers read it as any user
_MOUNT_OPTIONS = ("ro", "nosuid", "nodev", "noexec", "bind")
_GENERATION = re.compile(rb'"generation": ?([1-9][0-9]{0,8})\b')
_HEAD = 4096

Document = dict[str, Any]
"""The metadata of one request's devices, as JSON, without versions and generation."""


def rendered(document: Document, generation: int) -> bytes:
    """Return the bytes of a file, an object a line; the same document gives the same bytes."""
    metadata = {**document["metadata"], "generation": generation}
    # The part that all versions share is encoded once.
    said = msgspec.json.encode({**document, "metadata": metadata}).decode()[1:]
    group = '{"kind": "DeviceMetadata", "apiVersion": "metadata.resource.k8s.io'
    return "".join(f'{group}/{version}", {said}\n' for version in VERSIONS).encode()


def container_paths(record: ClaimRecord) -> dict[str, str]:
    """Return the path in containers of each request's file; none if the claim gets no files.

    The path of a claim from a template has the pod's name for it, as the claim's own is generated.
    """
    folder = _folder(record)
    if folder is None:
        return {}
    return {name: f"{folder}/{name}/{_FILE}" for name in _requests(record)}


def documents(
    record: ClaimRecord,
    gpus: Mapping[GpuUuid, Gpu],
    inventory: Inventory,
    islands: Mapping[GpuUuid, GpuUuid],
) -> dict[str, Document]:
    """Return the metadata of each request of a claim, all of whose devices exist.

    `islands` is about the GPUs that NVLink joins. Raises TransientError while a GPU does not report
    its MIG profiles.
    """
    if _folder(record) is None:
        return {}
    ref = record.ref
    return {
        name: {
            "metadata": {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid},
            **({"podClaimName": record.pod_claim_name} if record.pod_claim_name else {}),
            "requests": [
                {
                    "name": _full_name(name, entries[0]),
                    "devices": [
                        _device(entry, gpus[entry.device.gpu], inventory, islands)
                        for entry in entries
                    ],
                }
            ],
        }
        for name, entries in _requests(record).items()
    }


def _folder(record: ClaimRecord) -> str | None:
    """Return the folder of a claim's files in containers; None if the claim gets no files."""
    name = record.ref.name
    if not _SUBDOMAIN.fullmatch(name) or ".." in name:
        return None
    if is_label(record.pod_claim_name):
        return f"{CONTAINER_FOLDER}/resourceclaimtemplates/{record.pod_claim_name}"
    return f"{CONTAINER_FOLDER}/resourceclaims/{name}"


def _requests(record: ClaimRecord) -> dict[str, list[DeviceRecord]]:
    """Return the devices of a claim by request, in the claim's order."""
    entries: dict[str, list[DeviceRecord]] = {}
    for entry in record.devices:
        for name in filter(is_label, entry.request_names):
            entries.setdefault(name, []).append(entry)
    return entries


def _full_name(request: str, entry: DeviceRecord) -> str:
    """Return the name of a request with the chosen sub-request, as the allocation has it."""
    chosen = entry.subrequest
    return f"{request}/{chosen}" if chosen is not None and is_label(chosen) else request


def _device(
    entry: DeviceRecord, gpu: Gpu, inventory: Inventory, islands: Mapping[GpuUuid, GpuUuid]
) -> dict[str, object]:
    attributes = Attributes(entry.name)
    describe(NodeDevice(gpu=gpu, device=entry.device), inventory, attributes, islands)
    return {
        "driver": DRIVER_NAME,
        "pool": entry.pool,
        "name": entry.name,
        "attributes": attributes.values,
    }


class MetadataFiles:
    """The files below the driver's directory. Callers make one call at a time for each claim.

    If it is not `is_on`, containers get no files; existing ones are deleted all the same.
    """

    def __init__(self, directory: Path, *, is_on: bool = True) -> None:
        self._root = directory / FOLDER
        self._written: dict[ClaimUid, dict[str, Look | None]] = {}
        """How each file looked then, by its name; None if it could not be written."""
        self.is_on = is_on

    def path(self, uid: ClaimUid, request: str) -> str:
        """Return the path of a request's file on the node. The request's name is a DNS label."""
        return f"{self._folder(uid)}/{request}.json"

    def mounts(self, record: ClaimRecord) -> dict[str, tuple[Mount, ...]]:
        """Return the mounts of a claim's files, by the allocation id of the device to have them.

        A container that gets a request gets all its devices, so the first of them mounts the file.
        """
        mounts: dict[str, tuple[Mount, ...]] = {}
        for request, path in (container_paths(record) if self.is_on else {}).items():
            first = next(device for device in record.devices if request in device.request_names)
            source = self.path(record.ref.uid, request)
            mount = Mount(host_path=source, container_path=path, options=_MOUNT_OPTIONS)
            mounts[first.allocation_id] = (*mounts.get(first.allocation_id, ()), mount)
        return mounts

    def _folder(self, uid: ClaimUid) -> str:
        return f"{self._root}/{check_uid(uid)}"

    def write(self, uid: ClaimUid, documents: Mapping[str, Document]) -> None:
        """Write a claim's files, and a folder for them even if there are none.

        A file with the same content is left alone. Not synced: a power cut ends all containers that
        had the files. If an existing file cannot be written it stays as it was. Raises StateError
        if a missing file cannot be written.
        """
        folder = self._folder(uid)
        try:
            if not _is_folder(self._root):
                os.makedirs(self._root.parent, mode=0o700, exist_ok=True)
                _make_folder(str(self._root))
            _make_folder(folder)
        except OSError as error:
            raise disk_refused(f"write device metadata {folder}", error) from error
        files = {f"{request}.json": document for request, document in documents.items()}
        self._written[uid] = {
            name: self._write(f"{folder}/{name}", document) for name, document in files.items()
        }

    def are_as_left(self, uid: ClaimUid) -> bool:
        """Tell whether the claim's files look as they did when they were written here."""
        folder, files = self._folder(uid), self._written.get(uid, {})
        looks = [(look, look_of(f"{folder}/{name}")) for name, look in files.items()]
        return bool(looks) and all(look and look == now for look, now in looks)

    def delete(self, uid: ClaimUid) -> None:
        """Delete a claim's files; missing ones are fine. Raises StateError if it fails."""
        folder = self._folder(uid)
        try:
            _remove(folder, self._written.pop(uid, ()))
        except OSError as error:
            raise disk_refused(f"delete device metadata {folder}", error) from error

    def uids(self) -> set[ClaimUid]:
        """Return the claims that have a folder here. Raises StateError."""
        try:
            names = [entry.name for entry in os.scandir(self._root)]
        except (FileNotFoundError, NotADirectoryError):
            return set()
        except OSError as error:
            raise disk_refused(f"read device metadata {self._root}", error) from error
        uids: set[ClaimUid] = set()
        for name in names:
            with suppress(ConfigError):  # this is not a claim's folder
                uids.add(check_uid(name))
        return uids

    def complete(self) -> set[ClaimUid]:
        """Return the claims whose folder has every file written to it. Raises StateError."""
        return {uid for uid in self.uids() if self._is_complete(uid)}

    def _is_complete(self, uid: ClaimUid) -> bool:
        folder = self._folder(uid)  # or a file in its place: the next writer says what is wrong
        return _is_folder(folder) and self._written.get(uid, {}).keys() <= set(entries_of(folder))

    def _write(self, path: str, document: Document) -> Look | None:
        contents = read_if_plain(path)
        said = _GENERATION.search(contents[0][:_HEAD]) if contents else None
        generation = int(said[1]) if said else 1 if contents else 0
        try:
            if contents and contents[0] == rendered(document, generation):
                if stat.S_IMODE(contents[1].st_mode) != _FILE_MODE:
                    os.chmod(path, _FILE_MODE)
                return look_of(path)
            data = rendered(document, generation + 1)
            try:
                write_whole(path, data, mode=_FILE_MODE, durable=False)
            except IsADirectoryError:
                _remove(path)
                write_whole(path, data, mode=_FILE_MODE, durable=False)
        except OSError as error:
            failed = disk_refused(f"write device metadata {path}", error)
            if contents is None:
                raise failed from error
            # The file describes the same devices at an earlier time: containers can start with it.
            log.warning("device metadata left as it was", reason=str(failed))
            return None
        return look_of(path)


def _is_folder(path: str | Path) -> bool:
    """Tell whether the path is a folder, and not a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _make_folder(path: str) -> None:
    """Make a folder, replacing a file or link that is there; an existing folder stays as it is."""
    try:
        os.mkdir(path)
    except FileExistsError:
        if _is_folder(path):
            return
        os.unlink(path)
        os.mkdir(path)
    os.chmod(path, _FOLDER_MODE)


def _remove(path: str, names: Iterable[str] = ()) -> None:
    """Remove a file, a link, or a folder with its content; a missing one is fine.

    A folder that has only files of these names is not listed first.
    """
    if not _is_folder(path):
        with suppress(NotADirectoryError):
            delete(path)
        return
    try:
        for name in names:
            delete(f"{path}/{name}")
        os.rmdir(path)
    except OSError:
        shutil.rmtree(path)
