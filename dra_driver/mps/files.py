"""The files below the MPS directory: where they are, and how they are written and read.

    desired/<id>.json      what the driver wants            (mps/domain.py)
    members/<id>/<claim>   which claims have joined a shared domain; the driver's (mps/members.py)
    status/<id>.json       what the supervisor answers      (mps/domain.py)
    domains/<id>/          the supervisor's: record.json; run, log and shm, each a small tmpfs
    supervisor.lock        held by the running supervisor; its content is `Status.supervisor`
    eviction.lock          held by an evicted driver that waits for claims (kubelet/eviction.py)

A file appears whole or not at all, by a rename in its folder; a name that begins with a dot is a
file that is being written. Driver and supervisor share nothing else, so either can be replaced at
any time.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from dra_driver.host.files import file_error, read_whole, temporary_of, write_whole
from dra_driver.mps.domain import DomainId, check_id, is_id

_SUFFIX = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainPaths:
    """The folders of one domain, whose paths are the same on the host."""

    folder: Path

    @property
    def record(self) -> Path:
        """What the supervisor has changed for the domain."""
        return self.folder / "record.json"

    @property
    def run(self) -> Path:
        """The tmpfs with the two folders below: links can be made between them."""
        return self.folder / "run"

    @property
    def own(self) -> Path:
        """CUDA_MPS_PIPE_DIRECTORY as the daemon sees it. No container has it: it can be trusted."""
        return self.run / "own"

    @property
    def pipe(self) -> Path:
        """CUDA_MPS_PIPE_DIRECTORY as clients see it. What is in it may be a tenant's work."""
        return self.run / "pipe"

    @property
    def log(self) -> Path:
        """CUDA_MPS_LOG_DIRECTORY: control.log and server.log."""
        return self.folder / "log"

    @property
    def shm(self) -> Path:
        """The tmpfs that daemon and clients see as /dev/shm."""
        return self.folder / "shm"

    @property
    def mounted(self) -> tuple[Path, ...]:
        """Where file systems are mounted."""
        return self.run, self.log, self.shm

    @property
    def libraries(self) -> Path:
        """Links to the libraries of the driver that runs, for the daemon and its servers."""
        return self.folder / "lib"


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsFiles:
    """Every path below the MPS directory, `<kubelet plugins>/gpu.nvidia.com/mps`."""

    root: Path

    @property
    def desired_folder(self) -> Path:
        """Written by the driver."""
        return self.root / "desired"

    @property
    def status_folder(self) -> Path:
        """Written by the supervisor."""
        return self.root / "status"

    @property
    def members_folder(self) -> Path:
        """Written by the driver, and read by it alone."""
        return self.root / "members"

    @property
    def domains_folder(self) -> Path:
        """Written by the supervisor and its daemons."""
        return self.root / "domains"

    @property
    def lock(self) -> Path:
        """Held by the running supervisor."""
        return self.root / "supervisor.lock"

    @property
    def eviction(self) -> Path:
        """Held by a driver that is evicted, and waits for claims whose domains have to be ended."""
        return self.root / "eviction.lock"

    def desired(self, domain: DomainId) -> Path:
        """Return the path of a desired-state file."""
        return self.desired_folder / f"{check_id(domain)}{_SUFFIX}"

    def status(self, domain: DomainId) -> Path:
        """Return the path of a status file."""
        return self.status_folder / f"{check_id(domain)}{_SUFFIX}"

    def members(self, domain: DomainId) -> Path:
        """Return the folder with a file for each claim that has joined a shared domain."""
        return self.members_folder / check_id(domain)

    def paths(self, domain: DomainId) -> DomainPaths:
        """Return the folders of a domain."""
        return DomainPaths(folder=self.domains_folder / check_id(domain))

    def make_folders(self) -> None:
        """Make the folders that driver and supervisor share; whichever starts first does it.

        Raises:
            StateError: they cannot be made.
        """
        for folder in (self.desired_folder, self.status_folder, self.domains_folder):
            try:
                folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            except OSError as error:
                raise file_error("make", folder, error) from error


def ids_in(folder: Path) -> set[DomainId]:
    """Return the ids that have a file in a folder of files. An absent folder has none.

    Raises:
        StateError: the folder cannot be read.
    """
    return {
        DomainId(name.removesuffix(_SUFFIX))
        for name in names_in(folder)
        if name.endswith(_SUFFIX) and not name.startswith(".")
    }


def folders_in(folder: Path) -> set[DomainId]:
    """Return the ids that have a folder here. An absent folder has none.

    Raises:
        StateError: the folder cannot be read.
    """
    return {DomainId(name) for name in names_in(folder)}


def read_file(path: Path) -> bytes | None:
    """Return a file's bytes, None when it is absent.

    Raises:
        StateError: it cannot be read.
    """
    try:
        found = read_whole(path)
    except OSError as error:
        raise file_error("read", path, error) from error
    return None if found is None else found[0]


def write_file(path: Path, data: bytes, *, durable: bool, mode: int = 0o644) -> None:
    """Write a file whole; a durable one survives a power cut once this returns.

    Raises:
        StateError: it cannot be written.
    """
    try:
        write_whole(path, data, mode=mode, durable=durable)
    except OSError as error:
        raise file_error("write", path, error) from error


def delete_file(path: Path) -> None:
    """Delete a file, if there is one, and what a crash may have left beside it.

    Raises:
        StateError: it cannot be deleted.
    """
    try:
        temporary_of(path).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    except OSError as error:
        raise file_error("delete", path, error) from error


def members_in(folder: Path) -> frozenset[str]:
    """Return the UIDs of the claims that have a file in a folder of members.

    Raises:
        StateError: the folder cannot be read.
    """
    return frozenset(filter(is_id, names_in(folder)))


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder. An absent folder has none.

    Raises:
        StateError: the folder cannot be read.
    """
    try:
        return os.listdir(folder)  # noqa: PTH208 (names are what is wanted)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise file_error("read", folder, error) from error
