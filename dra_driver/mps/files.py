"""Defines the files below the MPS directory, and writes and reads them.

    desired/<id>.json      what the driver wants            (mps/domain.py)
    members/<id>/<claim>   which claims have joined it      (mps/requests.py)
    status/<id>.json       what the supervisor answers      (mps/domain.py)
    domains/<id>/          the supervisor's: record.json; run, log and shm, each a small tmpfs
    supervisor.lock        held by the running supervisor; its content is `Status.supervisor`
    eviction.lock          held by an evicted driver that waits for claims (kubelet/eviction.py)

If something cannot be read or written, that is a StateError; a missing folder counts as empty. A
file is written under a name that begins with a dot and then renamed, so it appears whole or not at
all. Driver and supervisor share nothing else, so either can be replaced at any time.
"""

import os
from pathlib import Path

from dra_driver.host.files import delete, file_error, read_whole, temporary_of, write_whole
from dra_driver.mps.domain import DomainId, check_id, is_id

CONTAINER_PIPE_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 (CUDA's own default)
CONTAINER_SHM = "/dev/shm"  # noqa: S108 (where CUDA looks)
"""Where daemons and containers see the folders that they share."""

_SUFFIX = ".json"


class DomainPaths:
    """The folders of one domain, whose paths are the same on the host.

    Attributes:
        record: what the supervisor has changed for the domain.
        run: the tmpfs with the next two folders, so that links between them are possible.
        own: CUDA_MPS_PIPE_DIRECTORY for the daemon. No container has it, so it can be trusted.
        pipe: CUDA_MPS_PIPE_DIRECTORY for clients. Tenants may have changed its content.
        log: CUDA_MPS_LOG_DIRECTORY: control.log and server.log.
        shm: the tmpfs that daemon and clients see as /dev/shm.
        libraries: links to the libraries of the running GPU driver, for the daemon and its servers.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record = folder / "record.json"
        self.run = folder / "run"
        self.own = self.run / "own"
        self.pipe = self.run / "pipe"
        self.log = folder / "log"
        self.shm = folder / "shm"
        self.mounted = (self.run, self.log, self.shm)
        self.libraries = folder / "lib"


class MpsFiles:
    """Every path below the MPS directory, `<kubelet plugins>/gpu.nvidia.com/mps`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.desired_folder = root / "desired"
        self.status_folder = root / "status"
        self.members_folder = root / "members"
        self.domains_folder = root / "domains"
        self.lock = root / "supervisor.lock"
        self.eviction = root / "eviction.lock"

    def desired(self, domain: DomainId) -> Path:
        """Return the path of a desired-state file."""
        return self.desired_folder / f"{check_id(domain)}{_SUFFIX}"

    def status(self, domain: DomainId) -> Path:
        """Return the path of a status file."""
        return self.status_folder / f"{check_id(domain)}{_SUFFIX}"

    def members(self, domain: DomainId) -> Path:
        """Return the folder with a file for each claim that has joined a domain."""
        return self.members_folder / check_id(domain)

    def paths(self, domain: DomainId) -> DomainPaths:
        """Return the folders of a domain."""
        return DomainPaths(self.domains_folder / check_id(domain))

    def make_folders(self) -> None:
        """Make the folders that driver and supervisor share, if they do not exist yet."""
        for folder in (self.desired_folder, self.status_folder, self.domains_folder):
            try:
                folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            except OSError as error:
                raise file_error("make", folder, error) from error


def ids_in(folder: Path) -> set[DomainId]:
    """Return the ids that have a file in a folder of files."""
    return {
        DomainId(name.removesuffix(_SUFFIX))
        for name in names_in(folder)
        if name.endswith(_SUFFIX) and not name.startswith(".")
    }


def read_file(path: Path) -> bytes | None:
    """Return a file's bytes, None if it does not exist."""
    try:
        contents = read_whole(path)
    except OSError as error:
        raise file_error("read", path, error) from error
    return None if contents is None else contents[0]


def write_file(path: Path, data: bytes, *, durable: bool, mode: int = 0o644) -> None:
    """Write a file whole; if durable, it survives a power cut from now on."""
    try:
        write_whole(path, data, mode=mode, durable=durable)
    except OSError as error:
        raise file_error("write", path, error) from error


def delete_file(path: Path) -> None:
    """Delete a file if it exists, and what a crash may have left beside it."""
    try:
        delete(temporary_of(path))
        delete(path)
    except OSError as error:
        raise file_error("delete", path, error) from error


def members_in(folder: Path) -> frozenset[str]:
    """Return the UIDs of the claims that have a file in a folder of members."""
    return frozenset(filter(is_id, names_in(folder)))


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder."""
    try:
        return os.listdir(folder)  # noqa: PTH208 (names are what is wanted)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise file_error("read", folder, error) from error
