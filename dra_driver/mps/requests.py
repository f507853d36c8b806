"""The driver's side of MPS: claims join and leave domains, which the supervisor serves.

A domain exists while it has members: a file for each claim, and the desired-state file as a request
to the supervisor. Joins and leaves of one domain exclude each other between threads and driver
processes, by a lock of the domain that is held for file operations only. The GPU's lock would not
do: claims leave without it, so that nobody waits for a daemon with a GPU locked, and of a claim
without a record nobody knows the GPUs. Member files are written before the request and removed
after it. So after a kill at any point, a repeated call repairs what was half done, and `tidy` ends
domains without members. Member files are not synced: a power cut ends all clients, and claims that
are still wanted join again.

A status counts only if it is about exactly the requested domain, and was written by the supervisor
that runs now. A wait ends as soon as the answer is there (inotify); deadlines are values of the
given clock. A file that cannot be read or written is a StateError. A request that cannot succeed
any more is a DeviceError at once. Otherwise calls wait: for seconds while a supervisor is being
replaced, and not long if there was never one. Without a supervisor, a domain still accepts claims
if its last status was ready, and its daemon listens in its own folder, which no tenant can reach.
"""

import math
import os
import secrets
import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from dra_driver.errors import (
    ConflictError,
    DeviceError,
    StateError,
    TransientError,
    VersionError,
    try_all,
)
from dra_driver.host.files import file_error
from dra_driver.host.inotify import WatchPool
from dra_driver.host.ofd_lock import holder_of, last_holder_of
from dra_driver.host.turns import waiting
from dra_driver.mps.domain import (
    Domain,
    DomainId,
    State,
    Status,
    decode_domain,
    decode_status,
    encode,
    is_id,
)
from dra_driver.mps.files import (
    DomainPaths,
    MpsFiles,
    delete_file,
    ids_in,
    members_in,
    names_in,
    read_file,
    write_file,
)
from dra_driver.mps.pipes import CONTROL_SOCKET
from dra_driver.mps.processes import listens

T = TypeVar("T")


class _OverdueError(TransientError):
    """The wait took longer than allowed."""


SUPERVISOR_GRACE_SECONDS = 5.0
"""Seconds to wait for a supervisor on a node that never had one."""

_REPLACEMENT_GRACES = 3  # times the grace, if the pod of an earlier supervisor is being replaced

_LONGEST_WAIT = 0.25  # no file changes when the supervisor dies

_IDLE_WATCHES = 8  # enough for the claims that the kubelet prepares at once

_NOT_RUNNING = (
    "the MPS supervisor is not running on this node: deploy `dra-driver mps-supervisor` on every "
    "node with MPS, and see the state and the log of its pod"
)


def _only_reads(domain: DomainId) -> AbstractContextManager[None]:
    raise StateError(f"only the driver changes who uses MPS domain {domain}")


class DomainRequests:
    """The MPS domains of a node, and their members. Methods may be called from any thread."""

    def __init__(
        self,
        directory: Path,
        clock: Callable[[], float],
        *,
        lock: Callable[[DomainId], AbstractContextManager[None]] = _only_reads,
        supervisor_grace: float = SUPERVISOR_GRACE_SECONDS,
    ) -> None:
        """Take the supervisor's directory, which is made for the first domain.

        `lock` holds the lock of a domain (claims/state/locks.py); without it, claims cannot join or
        leave. `supervisor_grace` is how many seconds to wait for a supervisor on a node that never
        had one.
        """
        self._files = MpsFiles(root=directory)
        self._clock = clock
        self._lock = lock
        self._grace = supervisor_grace
        self._stopping = threading.Event()
        self._watches = WatchPool(self._files.status_folder, most_kept=_IDLE_WATCHES)

    def paths(self, domain: DomainId) -> DomainPaths:
        """Return the folders of a domain."""
        return self._files.paths(domain)

    def write_desired(self, domain: Domain) -> None:
        """Request a domain. Requesting the same again changes nothing, or retries a failed one.

        Raises VersionError if a newer version of this driver requests it in a form not known here.
        """
        path, data = self._files.desired(domain.id), encode(domain)
        if read_file(path) == data:
            status = self.status(domain.id)
            if status is None or status.state is not State.FAILED:
                return
        _check_version(path, decode_domain)
        self._files.make_folders()
        write_file(path, data, durable=True)

    def remove(self, domain: DomainId) -> None:
        """Request a domain's removal, if it was requested. Needs no free space on the disk.

        A supervisor may have read the request and not answered yet: it does nothing for a domain
        before it has written a status and then found the request still there (mps/supervisor/
        lifecycle.py). So a domain without request, status and folder is gone, and stays gone.
        """
        delete_file(self._files.desired(domain))

    def desired(self, domain: DomainId) -> Domain | None:
        """Return the requested domain; None if there is none, or its file is damaged."""
        return _decoded(read_file(self._files.desired(domain)), decode_domain)

    def status(self, domain: DomainId) -> Status | None:
        """Return the domain's last status; None if there is none, or its file is damaged."""
        return _decoded(read_file(self._files.status(domain)), decode_status)

    def list(self) -> frozenset[DomainId]:
        """Return the ids of all domains that are requested, or not removed yet."""
        files = self._files
        return frozenset(ids_in(files.desired_folder) | ids_in(files.status_folder))

    def members(self, domain: DomainId) -> frozenset[str]:
        """Return the UIDs of the claims that have joined a domain."""
        return members_in(self._files.members(domain))

    def join(self, domain: Domain, claim: str) -> None:
        """Make a claim a member, and request the domain if nobody has; then call `wait_ready`.

        Joining again repairs what is missing and retries a failed domain. The domain's devices and
        limits may change only if it has no other members. Raises ConflictError if they differ from
        those of other members, or if another call uses the domain for too long. Raises VersionError
        if a newer version of this driver requests it in a form not known here, and StateError if
        the disk cannot be written, which leaves the claim as it was.
        """
        member = self._member(domain.id, claim)
        with self._lock(domain.id):
            running = self.desired(domain.id)
            others = members_in(member.parent) - {claim}
            if running is not None and others:
                _check_same(running, domain, len(others))
            if running is None or running.content != domain.content:
                running = replace(domain, incarnation=secrets.token_hex(8))
            is_new = not member.exists()
            try:
                if is_new:
                    _make_member(member)
                self.write_desired(running)
            except StateError as error:
                if is_new:
                    self._back_out(domain.id, member, error)
                raise

    def leave(self, domain: DomainId, claim: str) -> bool:
        """End a claim's membership; if it was the last member, end the domain.

        Returns True while the domain ends: until then the claim stays its member, so that it is
        found whatever happens. Call `DomainRequests.wait_gone`, and leave again. Leaving again, or
        without having joined, is fine. Needs no free space on the disk. Raises ConflictError if
        another call uses the domain for too long, and StateError if the disk accepts no change.
        """
        member = self._member(domain, claim)
        with self._lock(domain):
            if members_in(member.parent) <= {claim}:
                self.remove(domain)
                if self.is_present(domain):
                    return True
            delete_file(member)
            _remove_empty(member.parent)
            return False

    def joined(self, claim: str) -> frozenset[DomainId]:
        """Return the domains that a claim has joined."""
        return frozenset(domain for domain in self._domains() if claim in self.members(domain))

    def claims(self, uuids: Collection[str] | None = None) -> frozenset[str]:
        """Return the UIDs of all claims that have joined a domain, or one with such a device."""
        return frozenset[str]().union(
            *(
                self.members(domain)
                for domain in self._domains()
                if uuids is None or self._serves(domain, uuids)
            )
        )

    def _serves(self, domain: DomainId, uuids: Collection[str]) -> bool:
        """Tell whether a domain has one of these devices; one that is not requested may have."""
        desired = self.desired(domain)
        return desired is None or any(device.uuid in uuids for device in desired.devices)

    def tidy(self) -> None:
        """End every requested domain without members. Raises a StateError after all were tried.

        A kill in a join that failed leaves one, and a power cut takes member files. Call this after
        the claims of this node were repaired, which also restores member files.
        """
        known = self._domains() | set(filter(is_id, ids_in(self._files.desired_folder)))
        try_all(partial(self._tidy, domain) for domain in sorted(known))

    def is_present(self, domain: DomainId) -> bool:
        """Tell whether anything of a domain is left; the supervisor deletes the status last."""
        folder, status = self.paths(domain).folder, self._files.status(domain)
        try:
            return status.exists() or folder.exists()
        except OSError as error:
            raise file_error("read", status, error) from error

    def stop(self) -> None:
        """End every wait, now and later."""
        self._stopping.set()
        self._watches.close()

    def wait_ready(
        self, domain: Domain, deadline: float, given_up: Callable[[], bool] = lambda: False
    ) -> Status:
        """Wait until the domain's daemon serves clients with the requested limits.

        Only claims that have joined the domain may wait for it, and only its present incarnation
        counts. It needs no supervisor as long as its daemon is well. Raises
        DeviceError with the reason if the domain is not ready by the deadline or cannot become so,
        TransientError if `given_up` returned True or the driver stops, and VersionError if the
        supervisor has a newer version.
        """
        before = self.status(domain.id)

        def answer(supervisor: str | None) -> Status | None:
            if supervisor is None:
                return self._orphaned(domain)
            status = self.status(domain.id)
            if status is None:
                _check_version(self._files.status(domain.id), decode_status)
            if status is None or status.supervisor != supervisor:
                return None
            if status.generation != self._incarnation_of(domain).generation:
                return None
            if status.state is State.FAILED and status != before:
                raise DeviceError(f"MPS does not start: {status.reason}")
            return status if status.state is State.READY else None

        try:
            grace = self._grace
            if self._files.lock.exists():
                # If it was served before, its clients go on without a supervisor.
                grace = math.inf if before is not None else _REPLACEMENT_GRACES * grace
            return self._wait(
                domain.id, deadline, answer, waited_for="ready", grace=grace, given_up=given_up
            )
        except _OverdueError as error:
            # Not retried, because the wait was as long as allowed.
            raise DeviceError(str(error)) from error

    def _orphaned(self, domain: Domain) -> Status | None:
        """Return the last status if there is no supervisor now, and it is still valid."""
        status = self.status(domain.id)
        if status is None or status.state is not State.READY:
            return None
        is_last_word = status.supervisor == last_holder_of(self._files.lock)
        if not is_last_word or status.generation != self._incarnation_of(domain).generation:
            return None
        return status if listens(self.paths(domain.id).own, CONTROL_SOCKET) else None

    def wait_gone(self, domain: DomainId, deadline: float) -> None:
        """Wait until everything done for a domain is undone. Call `remove` first.

        If a claim joins it meanwhile, the wait ends. Raises TransientError if the domain is still
        there at the deadline, or no supervisor runs; the supervisor continues by itself.
        """

        def answer(_supervisor: str | None) -> bool | None:
            is_requested = self._files.desired(domain).exists()
            return True if is_requested or not self.is_present(domain) else None

        if answer(None) is None:
            # No grace: a supervisor that starts later ends the domain by itself.
            self._wait(domain, deadline, answer, waited_for="removed", grace=0.0)

    def _tidy(self, domain: DomainId) -> None:
        if not self.members(domain):
            with suppress(ConflictError), self._lock(domain):  # a call that uses it tidies up
                self._end_unused(domain)

    def _end_unused(self, domain: DomainId) -> None:
        """End a domain, whose lock is held, if it has no members."""
        if not self.members(domain):
            self.remove(domain)
            _remove_empty(self._files.members(domain))

    def _back_out(self, domain: DomainId, member: Path, why: StateError) -> None:
        """Undo an incomplete join; a domain in a newer version's format is left alone."""
        with suppress(StateError):
            delete_file(member)
            if isinstance(why, VersionError):
                _remove_empty(member.parent)
            else:
                self._end_unused(domain)

    def _domains(self) -> set[DomainId]:
        """Return the domains that have a folder of members, which may be empty."""
        return set(map(DomainId, filter(is_id, names_in(self._files.members_folder))))

    def _member(self, domain: DomainId, claim: str) -> Path:
        if not is_id(claim):
            raise StateError(
                f"{claim[:160]!r} is not a valid claim UID: want 1 to 128 letters, digits, '-', "
                "'_' and '.'"
            )
        return self._files.members(domain) / claim

    def _incarnation_of(self, domain: Domain) -> Domain:
        """Return the domain as it is on disk, if it is the requested one."""
        desired = self.desired(domain.id)
        return desired if desired is not None and desired.content == domain.content else domain

    def _wait(
        self,
        domain: DomainId,
        deadline: float,
        answer: Callable[[str | None], T | None],
        *,
        waited_for: str,
        grace: float,
        given_up: Callable[[], bool] = lambda: False,
    ) -> T:
        """Wait until `answer`, which is given the running supervisor, returns something."""
        self._files.make_folders()
        missing_since: float | None = None
        with self._watches.lend() as watch:
            while True:
                supervisor, now = holder_of(self._files.lock), self._clock()
                found = answer(supervisor)
                if found is not None:
                    return found
                if supervisor is not None:
                    missing_since = None
                elif missing_since is None:
                    missing_since = now
                is_missed = missing_since is not None and now >= missing_since + grace
                is_overdue = now >= deadline or is_missed
                if is_overdue or self._stopping.is_set() or given_up():
                    is_away = supervisor is None
                    why = _NOT_RUNNING if is_away else self._late(domain, waited_for)
                    raise _OverdueError(why) if is_overdue else TransientError(why)
                with waiting():
                    watch.wait(min(_LONGEST_WAIT, deadline - now))

    def _late(self, domain: DomainId, waited_for: str) -> str:
        status = self.status(domain)
        if status is None:
            reason = "the MPS supervisor has not started on it"
        else:
            reason = status.reason or f"the MPS supervisor says it is {status.state}"
        return f"MPS domain {domain} is not {waited_for} yet: {reason}; this is retried"


def _make_member(member: Path) -> None:
    try:
        member.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(member, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    except OSError as error:
        with suppress(OSError):
            member.unlink(missing_ok=True)
        raise file_error("write", member, error) from error


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # it stays if somebody put something else there
        folder.rmdir()


def _check_same(running: Domain, wanted: Domain, others: int) -> None:
    """Raise ConflictError if a domain that others use is not the requested one."""
    there, now = _described(running), _described(wanted)
    differences = [
        f"{what} {value}, wanted {now[what]}"
        for what, value in there.items()
        if now.get(what, value) != value
    ]
    if differences:
        raise ConflictError(
            f"MPS domain {running.id} is in use by {others} other claim(s) as it was configured "
            f"before: {'; '.join(differences)}. Wait until they have ended, or delete their pods"
        )


def _described(domain: Domain) -> dict[str, str]:
    """Return what distinguishes a domain, for people."""
    limits = {
        f"pinned memory limit of {device.uuid}": _limit(device.pinned_memory_mib, " MiB")
        for device in domain.devices
    }
    return {
        "devices": ", ".join(device.uuid for device in domain.devices),
        **limits,
        "active thread percentage": _limit(domain.active_thread_percentage, " %"),
        "a server for": "all users" if domain.multi_user else "one user",
    }


def _limit(value: int | None, unit: str) -> str:
    return "none" if value is None else f"{value}{unit}"


def _decoded(data: bytes | None, decode: Callable[[bytes], T]) -> T | None:
    """Return a file's content; None if it does not exist or is damaged."""
    try:
        return None if data is None else decode(data)
    except StateError:
        return None


def _check_version(path: Path, decode: Callable[[bytes], object]) -> None:
    """Raise VersionError if a newer version of this driver wrote a file; ignore a damaged file."""
    data = read_file(path)
    try:
        if data is not None:
            decode(data)
    except VersionError as error:
        raise VersionError(
            f"{path} was written by a newer version of this driver or of its MPS supervisor "
            f"({error}): run the same version of both on this node"
        ) from error
    except StateError:
        return
