"""Which claims use which MPS domain: a domain exists while it has members.

In: domains and claim UIDs. Out: a member file for each claim, and the desired-state file of a
domain as long as it has members (mps/requests.py). Joins and leaves of one domain exclude each
other between threads and driver processes, by a lock of the domain that is held for file operations
only. The GPU's lock would not do: claims leave without it, so that nobody waits for a daemon with a
GPU locked, and of a claim without a record nobody knows the GPUs.

Member files are written before the desired-state file and removed after it. So after a kill at any
point, a repeated call repairs what was half done, and `tidy` ends domains without members. Member
files are not synced: a power cut ends all clients, and claims that are still wanted join again.
"""

import os
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from dra_driver.errors import ConflictError, StateError, VersionError, try_all
from dra_driver.host.files import file_error
from dra_driver.mps.domain import Domain, DomainId, is_id
from dra_driver.mps.files import MpsFiles, delete_file, members_in, names_in
from dra_driver.mps.requests import DomainRequests


class DomainMembers:
    """The members of a node's domains. Methods may be called from any thread.

    `lock` holds the lock of a domain (claims/state/locks.py).
    """

    def __init__(
        self,
        directory: Path,
        requests: DomainRequests,
        lock: Callable[[DomainId], AbstractContextManager[None]],
    ) -> None:
        self._files = MpsFiles(root=directory)
        self._requests = requests
        self._lock = lock

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
            running = self._requests.desired(domain.id)
            others = members_in(member.parent) - {claim}
            if running is not None and others:
                _check_same(running, domain, len(others))
            if running is None or running.content != domain.content:
                running = replace(domain, incarnation=secrets.token_hex(8))
            is_new = not member.exists()
            try:
                if is_new:
                    _make_member(member)
                self._requests.write_desired(running)
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
                self._requests.remove(domain)
                if self._requests.is_present(domain):
                    return True
            delete_file(member)
            _remove_empty(member.parent)
            return False

    def joined(self, claim: str) -> frozenset[DomainId]:
        """Return the domains that a claim has joined."""
        of = self._requests.members
        return frozenset(domain for domain in self._domains() if claim in of(domain))

    def claims(self) -> frozenset[str]:
        """Return the UIDs of all claims that have joined a domain."""
        return frozenset[str]().union(*map(self._requests.members, self._domains()))

    def tidy(self) -> None:
        """End every requested domain without members. Raises a StateError after all were tried.

        A kill in a join that failed leaves one, and a power cut takes member files. Call this after
        the claims of this node were repaired, which also restores member files.
        """
        known = self._domains() | set(filter(is_id, self._requests.requested()))
        try_all(partial(self._tidy, domain) for domain in sorted(known))

    def _tidy(self, domain: DomainId) -> None:
        if not self._requests.members(domain):
            with suppress(ConflictError), self._lock(domain):  # a call that uses it tidies up
                self._end_unused(domain)

    def _end_unused(self, domain: DomainId) -> None:
        """End a domain, whose lock is held, if it has no members."""
        if not self._requests.members(domain):
            self._requests.remove(domain)
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
