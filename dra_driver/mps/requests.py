"""The driver's side of MPS: asks the supervisor for domains by files, and waits for its answers.

In: domains. Out: desired-state files, and the `Status` that answers each. A status counts only if
it is about exactly the domain that was asked for, and was written by the supervisor that runs now.
A wait ends as soon as the answer is there (inotify); deadlines are values of the given clock.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from dra_driver.errors import DeviceError, StateError, TransientError
from dra_driver.mps.domain import (
    Domain,
    DomainId,
    State,
    Status,
    decode_domain,
    decode_status,
    encode_domain,
    encode_status,
)
from dra_driver.mps.files import (
    DomainPaths,
    MpsFiles,
    delete_file,
    file_error,
    ids_in,
    read_file,
    write_file,
)
from dra_driver.mps.inotify import WatchPool
from dra_driver.mps.lock import running_supervisor

T = TypeVar("T")

SUPERVISOR_GRACE_SECONDS = 5.0
"""A supervisor that is being replaced is away for less; after that a missing one is reported."""

_LONGEST_WAIT = 0.25  # no file changes when the supervisor dies

_IDLE_WATCHES = 8  # for as many claims as the kubelet prepares at once

_NOT_RUNNING = (
    "the MPS supervisor is not running on this node: deploy `dra-driver mps-supervisor` on every "
    "node with MPS, and see the state and the log of its pod"
)


class DomainRequests:
    """Asks for MPS domains. Methods may be called for different domains at the same time."""

    def __init__(
        self,
        directory: Path,
        clock: Callable[[], float],
        *,
        supervisor_grace: float = SUPERVISOR_GRACE_SECONDS,
    ) -> None:
        """Take the MPS directory, which is made when the first domain is asked for.

        Args:
            directory: the MPS directory, the same as the supervisor's.
            clock: monotonic seconds.
            supervisor_grace: seconds to wait for a supervisor when none runs.
        """
        self._files = MpsFiles(root=directory)
        self._clock = clock
        self._grace = supervisor_grace
        self._stopping = threading.Event()
        self._watches = WatchPool(self._files.status_folder, most_kept=_IDLE_WATCHES)

    def paths(self, domain: DomainId) -> DomainPaths:
        """Return the folders of a domain, for `client_edits`."""
        return self._files.paths(domain)

    def write_desired(self, domain: Domain) -> None:
        """Ask for a domain. Asking for the same again changes nothing.

        Raises:
            StateError: the disk cannot be written.
        """
        path, data = self._files.desired(domain.id), encode_domain(domain)
        if read_file(path) != data:
            self._files.make_folders()
            write_file(path, data, durable=True)

    def remove(self, domain: DomainId) -> None:
        """Ask for a domain's removal; that of one that nobody asked for is fine.

        Raises:
            StateError: the disk cannot be written.
        """
        path = self._files.desired(domain)
        if path.exists():
            # A supervisor may have read the file without having answered yet. Once there is a
            # status, the domain is gone only after the supervisor has seen that the file is gone.
            _write_new(self._files.status(domain), encode_status(_not_seen(domain)))
        delete_file(path)

    def desired(self, domain: DomainId) -> Domain | None:
        """Return the domain that is asked for; None if there is none, or its file is damaged.

        Raises:
            StateError: the disk cannot be read.
        """
        data = read_file(self._files.desired(domain))
        try:
            return None if data is None else decode_domain(data)
        except StateError:
            return None

    def status(self, domain: DomainId) -> Status | None:
        """Return the domain's last status; None if there is none, or its file is damaged.

        Raises:
            StateError: the disk cannot be read.
        """
        data = read_file(self._files.status(domain))
        try:
            return None if data is None else decode_status(data)
        except StateError:
            return None

    def list(self) -> frozenset[DomainId]:
        """Return the ids of all domains that are asked for, or not removed yet.

        Raises:
            StateError: the disk cannot be read.
        """
        files = self._files
        return frozenset(ids_in(files.desired_folder) | ids_in(files.status_folder))

    def supervisor_runs(self) -> bool:
        """Tell whether a supervisor serves this node now.

        Raises:
            StateError: the lock cannot be read.
        """
        return running_supervisor(self._files.lock) is not None

    def stop(self) -> None:
        """End every wait, now and from now on."""
        self._stopping.set()
        self._watches.close()

    def wait_ready(self, domain: Domain, deadline: float) -> Status:
        """Wait until the domain's daemon serves clients with the limits that were asked for.

        A domain that has failed is retried at once, without the supervisor's pause.

        Raises:
            DeviceError: several attempts to start it have failed; the text says why.
            TransientError: it is not ready by the deadline, or no supervisor runs.
            StateError: the disk cannot be read.
        """
        before = self.status(domain.id)
        if before is not None and before.state is State.FAILED:
            write_file(self._files.desired(domain.id), encode_domain(domain), durable=True)

        def look(supervisor: str) -> Status | None:
            status = self.status(domain.id)
            if status is None or status.supervisor != supervisor:
                return None
            if status.generation != domain.generation:
                return None
            if status.state is State.FAILED and status != before:
                raise DeviceError(f"MPS does not start: {status.reason}")
            return status if status.state is State.READY else None

        return self._wait(domain.id, deadline, look, waited_for="ready")

    def wait_gone(self, domain: DomainId, deadline: float) -> None:
        """Wait until all that was done for a domain is undone. Call `remove` first.

        Raises:
            TransientError: it is not by the deadline, or no supervisor runs; the supervisor
                continues by itself.
            StateError: the disk cannot be read.
        """

        def look(supervisor: str | None) -> bool | None:
            del supervisor
            return None if self._is_present(domain) else True

        if not self._drop_unanswered(domain) and look(None) is None:
            self._wait(domain, deadline, look, waited_for="removed")

    def _drop_unanswered(self, domain: DomainId) -> bool:
        """Drop a domain if no supervisor has done anything for it, and none runs."""
        if self.supervisor_runs() or self._files.desired(domain).exists():
            return False
        if self.status(domain) != _not_seen(domain) or self.paths(domain).folder.exists():
            return False
        delete_file(self._files.status(domain))
        return True

    def _is_present(self, domain: DomainId) -> bool:
        """Tell whether anything of a domain is left; the supervisor deletes the status last."""
        folder, status = self._files.paths(domain).folder, self._files.status(domain)
        try:
            return status.exists() or folder.exists()
        except OSError as error:
            raise file_error("read", status, error) from error

    def _wait(
        self,
        domain: DomainId,
        deadline: float,
        look: Callable[[str], T | None],
        *,
        waited_for: str,
    ) -> T:
        self._files.make_folders()
        missing_since: float | None = None
        with self._watches.lend() as watch:
            while True:
                supervisor, now = running_supervisor(self._files.lock), self._clock()
                if supervisor is None:
                    missing_since = now if missing_since is None else missing_since
                    if now >= min(missing_since + self._grace, deadline):
                        raise TransientError(_NOT_RUNNING)
                else:
                    missing_since = None
                    found = look(supervisor)
                    if found is not None:
                        return found
                if now >= deadline or self._stopping.is_set():
                    raise TransientError(self._late(domain, waited_for))
                watch.wait(min(_LONGEST_WAIT, deadline - now))

    def _late(self, domain: DomainId, waited_for: str) -> str:
        status = self.status(domain)
        if status is None:
            reason = "the MPS supervisor has not started on it"
        else:
            reason = status.reason or f"the MPS supervisor says it is {status.state}"
        return f"MPS domain {domain} is not {waited_for} yet: {reason}; this is retried"


def _not_seen(domain: DomainId) -> Status:
    return Status(
        id=domain,
        state=State.STOPPING,
        supervisor="",
        reason="the MPS supervisor has not seen yet that it is no longer wanted",
    )


def _write_new(path: Path, data: bytes) -> None:
    """Write a file whole, unless there is one."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.unlink(missing_ok=True)  # a crash may have left it linked to the file
        temporary.write_bytes(data)
        with suppress(FileExistsError):
            path.hardlink_to(temporary)
        temporary.unlink()
    except OSError as error:
        raise file_error("write", path, error) from error
