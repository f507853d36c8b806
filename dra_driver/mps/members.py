"""Shared MPS domains: claims join and leave them, and the last one to leave ends the domain.

In: domains with ids from `shared_domain`, and claim UIDs. Out: a member file for each claim, and
the desired-state file of a domain as long as it has members (mps/requests.py). Joins and leaves of
one domain exclude each other between threads and driver processes, by flock(2) on the folder of its
members. The lock is held for file operations only, not while callers wait for the supervisor.
Member files are written before the desired-state file and removed before it. So after a kill at any
point, a repeated call repairs what was half done, and `tidy` ends domains without members. Member
files are not synced: a power cut ends all clients, and claims that are still wanted join again.
"""

import fcntl
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec.structs import replace

from dra_driver.errors import ConflictError, StateError, VersionError
from dra_driver.host.files import file_error
from dra_driver.host.turns import waiting
from dra_driver.mps.domain import Domain, DomainId, State, encode_domain, is_id, is_shared
from dra_driver.mps.files import MpsFiles, delete_file, ids_in, members_in, names_in, write_file
from dra_driver.mps.requests import DomainRequests

LOCK_SECONDS = 10.0
"""How long a call waits for another one, which does only file operations."""

_FIRST_POLL = 0.001
_LONGEST_POLL = 0.02


class SharedDomains:
    """The shared domains of a node. Methods may be called from any thread."""

    def __init__(
        self, directory: Path, requests: DomainRequests, clock: Callable[[], float]
    ) -> None:
        self._files = MpsFiles(root=directory)
        self._requests = requests
        self._clock = clock

    def join(self, domain: Domain, claim: str) -> None:
        """Make a claim a member, and request the domain if nobody has; then call `wait_ready`.

        Joining again repairs what is missing and retries a failed domain. The domain's devices and
        limits may change only if it has no other members. Raises ConflictError if they differ from
        those of other members, or if another call uses the domain for too long. Raises VersionError
        if a newer version of this driver requests it in a form not known here, and StateError if
        the disk cannot be written, which leaves the claim as it was.
        """
        member = self._member(domain.id, claim)
        with self._held(domain.id) as folder:
            running = self._requests.desired(domain.id)
            others = members_in(folder) - {claim}
            if running is not None and others:
                _check_same(running, domain, len(others))
            is_new = not member.exists()
            try:
                if is_new:
                    _make_member(member)
                self._ask_for(domain, running)
            except StateError as error:
                if is_new:
                    self._back_out(domain.id, member, error)
                raise

    def leave(self, domain: DomainId, claim: str) -> bool:
        """End a claim's membership; if no member is left, end the domain and return True.

        Leaving again, or without having joined, is fine. Needs no free space on the disk. If it
        returns True, `DomainRequests.wait_gone` tells when the GPU is as it was. Raises
        ConflictError if another call uses the domain for too long, and StateError if the disk
        accepts no change.
        """
        member = self._member(domain, claim)
        if not member.parent.exists() and not self._files.desired(domain).exists():
            return True
        with self._held(domain) as folder:
            delete_file(member)
            if members_in(folder):
                return False
            self._requests.remove(domain)
            _remove_empty(folder)
            return True

    def members(self, domain: DomainId) -> frozenset[str]:
        """Return the UIDs of the claims that have joined a domain."""
        return members_in(self._files.members(domain))

    def joined(self, claim: str) -> frozenset[DomainId]:
        """Return the domains that a claim has joined."""
        return frozenset(domain for domain in self._domains() if claim in self.members(domain))

    def claims(self) -> frozenset[str]:
        """Return the UIDs of all claims that have joined a domain."""
        return frozenset[str]().union(*map(self.members, self._domains()))

    def tidy(self) -> frozenset[DomainId]:
        """End every requested domain without members; return these domains.

        A process that was killed while the last claim left may not have ended it. Call this after
        the claims of this node were repaired, which also restores member files that somebody
        deleted. A StateError is raised only after the other domains have been tidied.
        """
        ended: set[DomainId] = set()
        errors: list[StateError] = []
        asked_for = set(filter(_is_shared_id, ids_in(self._files.desired_folder)))
        for domain in sorted(self._domains() | asked_for):
            try:
                if not self.members(domain) and self._end_unused(domain):
                    ended.add(domain)
            except ConflictError:
                continue  # the call that uses it tidies up, or the next one does
            except StateError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return frozenset(ended)

    def _end_unused(self, domain: DomainId) -> bool:
        with self._held(domain) as folder:
            if members_in(folder):
                return False
            is_wanted = self._files.desired(domain).exists()
            if is_wanted:
                self._requests.remove(domain)
            _remove_empty(folder)
            return is_wanted

    def _back_out(self, domain: DomainId, member: Path, why: StateError) -> None:
        """Undo an incomplete join; a domain in a newer version's format is left alone."""
        with suppress(StateError):
            delete_file(member)
            if not members_in(member.parent) and not isinstance(why, VersionError):
                self._requests.remove(domain)
            _remove_empty(member.parent)

    def _ask_for(self, domain: Domain, running: Domain | None) -> None:
        if running is None or running.content != domain.content:
            self._requests.write_desired(replace(domain, incarnation=secrets.token_hex(8)))
            return
        status = self._requests.status(domain.id)
        if status is not None and status.state is State.FAILED:
            write_file(self._files.desired(domain.id), encode_domain(running), durable=True)

    def _domains(self) -> set[DomainId]:
        """Return the domains that have a folder of members, which may be empty."""
        return set(map(DomainId, filter(_is_shared_id, names_in(self._files.members_folder))))

    def _member(self, domain: DomainId, claim: str) -> Path:
        if not is_shared(domain):
            raise StateError(f"{domain[:160]!r} is not the id of a shared MPS domain")
        if not is_id(claim):
            raise StateError(
                f"{claim[:160]!r} is not a valid claim UID: want 1 to 128 letters, digits, '-', "
                "'_' and '.'"
            )
        return self._files.members(domain) / claim

    @contextmanager
    def _held(self, domain: DomainId) -> Iterator[Path]:
        """Lock a domain by its folder of members, which is made if it does not exist yet."""
        folder = self._files.members(domain)
        deadline = self._clock() + LOCK_SECONDS
        while True:
            descriptor = _open_made(folder)
            try:
                self._lock(descriptor, domain, deadline)
                try:
                    if _is_still(folder, descriptor):
                        yield folder
                        return
                finally:
                    # close(2) may not unlock: a child that is being started has the descriptor too.
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
            finally:
                os.close(descriptor)

    def _lock(self, descriptor: int, domain: DomainId, deadline: float) -> None:
        pause = _FIRST_POLL
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._clock() >= deadline:
                    raise ConflictError(
                        f"another call that joins or leaves MPS domain {domain} is still running; "
                        "this call is retried by itself"
                    ) from None
            except OSError as error:
                raise file_error("lock", self._files.members(domain), error) from error
            else:
                return
            with waiting():
                threading.Event().wait(pause)
            pause = min(2 * pause, _LONGEST_POLL)


def _open_made(folder: Path) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        try:
            return os.open(folder, flags)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise file_error("open", folder, error) from error
        try:
            folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise file_error("make", folder, error) from error


def _is_still(folder: Path, descriptor: int) -> bool:
    """Tell whether an open folder was not removed or replaced meanwhile."""
    try:
        there = folder.stat()
    except OSError:
        return False
    return os.path.samestat(there, os.fstat(descriptor))


def _make_member(member: Path) -> None:
    try:
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
    differences = list(_differences(running, wanted))
    if differences:
        raise ConflictError(
            f"MPS domain {running.id} is in use by {others} other claim(s) as it was configured "
            f"before: {'; '.join(differences)}. Wait until they have ended, or delete their pods"
        )


def _differences(running: Domain, wanted: Domain) -> Iterator[str]:
    memory = [
        {device.uuid: device.pinned_memory_mib for device in each.devices}
        for each in (running, wanted)
    ]
    if [(device.uuid, device.kind) for device in running.devices] != [
        (device.uuid, device.kind) for device in wanted.devices
    ]:
        yield f"devices {', '.join(memory[0])}, wanted {', '.join(memory[1])}"
    for uuid in memory[0].keys() & memory[1].keys():
        if memory[0][uuid] != memory[1][uuid]:
            there, now = (_limit(each[uuid], " MiB") for each in memory)
            yield f"pinned memory limit of {uuid} {there}, wanted {now}"
    if running.active_thread_percentage != wanted.active_thread_percentage:
        there, now = (_limit(each.active_thread_percentage, " %") for each in (running, wanted))
        yield f"active thread percentage {there}, wanted {now}"
    if running.multi_user != wanted.multi_user:
        there, now = ("all users" if each.multi_user else "one user" for each in (running, wanted))
        yield f"a server for {there}, wanted for {now}"


def _limit(value: int | None, unit: str) -> str:
    return "none" if value is None else f"{value}{unit}"


def _is_shared_id(text: str) -> bool:
    return is_shared(text) and is_id(text)
