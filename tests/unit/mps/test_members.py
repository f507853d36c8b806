"""Domains on disk alone: who is a member, what is asked for, and what a bad disk leaves."""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.claims.state.locks import NodeLocks
from dra_driver.devices.device import DeviceKind
from dra_driver.errors import ConflictError, StateError, VersionError
from dra_driver.host.files import look_of
from dra_driver.mps.domain import (
    Domain,
    DomainDevice,
    DomainId,
    State,
    Status,
    encode,
    shared_domain,
)
from dra_driver.mps.requests import DomainRequests
from worlds.configs import PATIENCE

GPU = "GPU-00000000-0000-4000-8000-000000000001"
OTHER_GPU = "GPU-00000000-0000-4000-8000-000000000002"
MIG = "MIG-00000000-0000-4000-8000-000000000001"
Locked = Callable[..., Callable[[str], Any]]
NODE = Domain(id=shared_domain("node"), devices=(DomainDevice(uuid=GPU),))
OTHER = Domain(id=shared_domain(OTHER_GPU), devices=(DomainDevice(uuid=OTHER_GPU),))


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Locked]:
    """Locks of domains, as each process has them; a call waits by the clock."""
    made: list[NodeLocks] = []

    def locks(clock: Callable[[], float] = time.monotonic) -> Callable[[str], Any]:
        made.append(NodeLocks(tmp_path / "locks", clock, on_other=lambda: None))
        return made[-1].domain

    yield locks
    for each in made:
        each.close()


@pytest.fixture
def requests(tmp_path: Path, locked: Locked) -> DomainRequests:
    return DomainRequests(tmp_path / "mps", time.monotonic, lock=locked())


def asked_for(requests: DomainRequests, domain: DomainId = NODE.id) -> Domain | None:
    found = requests.desired(domain)
    return None if found is None else found.content


def left(root: Path) -> list[str]:
    """Every file, and every folder of members."""
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() or path.parent.name == "members"
    )


def test_members_know_each_other(requests: DomainRequests) -> None:
    requests.join(NODE, "one")
    requests.join(NODE, "two")
    requests.join(OTHER, "two")
    assert requests.joined("one") == {NODE.id}
    assert requests.joined("two") == {NODE.id, OTHER.id}
    assert requests.joined("three") == frozenset()
    assert requests.claims() == {"one", "two"}


def test_joining_again_touches_nothing(requests: DomainRequests, tmp_path: Path) -> None:
    requests.join(NODE, "one")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    before = [look_of(path) for path in files]
    requests.join(NODE, "one")
    assert [look_of(path) for path in files] == before


def test_leaving_again_is_fine_and_ends_nothing_that_others_use(requests: DomainRequests) -> None:
    assert not requests.leave(NODE.id, "one")
    requests.join(NODE, "two")
    assert not requests.leave(NODE.id, "one")
    assert asked_for(requests) == NODE


def test_the_last_member_stays_until_the_domain_is_gone(requests: DomainRequests) -> None:
    requests.join(NODE, "one")
    folder = requests.paths(NODE.id).folder
    folder.mkdir()
    assert requests.leave(NODE.id, "one")
    assert asked_for(requests) is None
    assert requests.joined("one") == {NODE.id}
    folder.rmdir()
    assert not requests.leave(NODE.id, "one")
    assert requests.claims() == frozenset()


def test_the_last_to_leave_ends_a_domain_whose_folder_is_gone(
    requests: DomainRequests, tmp_path: Path
) -> None:
    requests.join(NODE, "one")
    (tmp_path / "mps/members" / NODE.id / "one").unlink()
    (tmp_path / "mps/members" / NODE.id).rmdir()
    assert not requests.leave(NODE.id, "one")
    assert asked_for(requests) is None
    assert left(tmp_path / "mps") == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"devices": (DomainDevice(uuid=OTHER_GPU),)}, f"devices {GPU}, wanted {OTHER_GPU}"),
        (
            {"devices": (DomainDevice(uuid=GPU, pinned_memory_mib=512),)},
            f"pinned memory limit of {GPU} none, wanted 512 MiB",
        ),
        ({"active_thread_percentage": 25}, "active thread percentage none, wanted 25 %"),
        ({"multi_user": True}, "a server for one user, wanted all users"),
    ],
)
def test_a_domain_that_others_use_does_not_change_and_the_error_says_how_it_differs(
    requests: DomainRequests, changes: dict[str, object], words: str
) -> None:
    changed = replace(NODE, **changes)  # type: ignore[arg-type]
    requests.join(NODE, "one")
    with pytest.raises(ConflictError, match="in use by 1 other claim") as caught:
        requests.join(changed, "two")
    assert words in str(caught.value)
    assert requests.members(NODE.id) == {"one"}
    assert asked_for(requests) == NODE
    # With nobody else in it, it takes the new form, for the member that is there as well.
    requests.join(changed, "one")
    assert asked_for(requests) == changed


def test_a_mig_device_can_have_a_shared_domain(requests: DomainRequests) -> None:
    device = DomainDevice(uuid=MIG, kind=DeviceKind.MIG)
    domain = Domain(id=shared_domain(MIG), devices=(device,))
    requests.join(domain, "one")
    assert asked_for(requests, domain.id) == domain


@pytest.mark.parametrize("claim", ["", "..", "../two", "a/b", ".half", "a\0b", "x" * 129])
def test_a_claim_with_a_hostile_name_is_refused(
    requests: DomainRequests, tmp_path: Path, claim: str
) -> None:
    with pytest.raises(StateError, match="not a valid claim UID"):
        requests.join(NODE, claim)
    with pytest.raises(StateError, match="not a valid claim UID"):
        requests.leave(NODE.id, claim)
    assert not (tmp_path / "mps").exists()


@pytest.mark.parametrize("domain", ["", "../x", "a/b"])
def test_an_invalid_domain_can_be_neither_joined_nor_left(
    requests: DomainRequests, tmp_path: Path, domain: str
) -> None:
    with pytest.raises(StateError, match="not a valid domain id"):
        requests.leave(DomainId(domain), "one")
    assert not (tmp_path / "mps").exists()


@pytest.mark.parametrize("has_folder", [True, False])
def test_tidying_ends_domains_without_members(
    requests: DomainRequests, tmp_path: Path, *, has_folder: bool
) -> None:
    requests.join(NODE, "one")
    requests.join(OTHER, "two")
    (tmp_path / "mps/members" / NODE.id / "one").unlink()  # and then it was killed
    if not has_folder:
        (tmp_path / "mps/members" / NODE.id).rmdir()
    requests.tidy()
    assert requests.desired(NODE.id) is None
    assert asked_for(requests, OTHER.id) == OTHER
    requests.tidy()
    assert not (tmp_path / "mps/members" / NODE.id).exists()


def test_a_domain_that_cannot_be_ended_keeps_no_other_from_it(
    requests: DomainRequests, tmp_path: Path
) -> None:
    bad, good = sorted((NODE, OTHER), key=lambda one: one.id)
    for domain in (bad, good):
        requests.join(domain, "one")
        (tmp_path / "mps/members" / domain.id / "one").unlink()
    (tmp_path / "mps/members" / bad.id).rmdir()
    (tmp_path / "mps/members" / bad.id).touch()
    with pytest.raises(StateError):
        requests.tidy()
    assert requests.desired(good.id) is None


def test_tidying_before_anything_was_joined_does_nothing(
    requests: DomainRequests, tmp_path: Path
) -> None:
    requests.tidy()
    assert not (tmp_path / "mps").exists()


def test_damaged_files_are_repaired_by_the_next_join(
    requests: DomainRequests, tmp_path: Path
) -> None:
    requests.join(NODE, "one")
    (tmp_path / f"mps/desired/{NODE.id}.json").write_bytes(b"{")
    requests.join(NODE, "two")
    assert asked_for(requests) == NODE


def test_a_failed_domain_is_requested_again_by_the_next_join(
    requests: DomainRequests, tmp_path: Path
) -> None:
    requests.join(NODE, "one")
    failed = Status(id=NODE.id, state=State.FAILED, supervisor="s")
    (tmp_path / f"mps/status/{NODE.id}.json").write_bytes(encode(failed))
    path = tmp_path / f"mps/desired/{NODE.id}.json"
    before, content = path.stat(), path.read_bytes()
    requests.join(NODE, "two")
    assert path.stat().st_mtime_ns > before.st_mtime_ns
    assert path.read_bytes() == content


def test_a_newer_drivers_domain_is_left_alone(requests: DomainRequests, tmp_path: Path) -> None:
    requests.join(NODE, "one")
    path = tmp_path / f"mps/desired/{NODE.id}.json"
    newer = path.read_bytes().replace(b'"version":3', b'"version":4')
    path.write_bytes(newer)
    with pytest.raises(VersionError, match="run the same version of both"):
        requests.join(NODE, "two")
    assert path.read_bytes() == newer
    assert requests.members(NODE.id) == {"one"}


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_failed_join_ends_an_empty_domain(
    requests: DomainRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests.write_desired(NODE)  # for a claim whose driver was killed while it left
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StateError, match="No space left on device"):
            requests.join(replace(NODE, multi_user=True), "one")
    assert asked_for(requests) is None


def test_a_join_waits_for_another_call_of_the_same_domain_and_of_no_other(
    requests: DomainRequests, locked: Locked
) -> None:
    requests.join(NODE, "one")
    waiting = threading.Thread(target=requests.join, args=(NODE, "two"))
    with locked()(NODE.id):  # as another process holds it
        waiting.start()
        requests.join(OTHER, "three")
        assert requests.members(NODE.id) == {"one"}
    waiting.join(PATIENCE)
    assert requests.members(NODE.id) == {"one", "two"}


def test_a_call_that_never_ends_is_not_waited_for_for_ever(
    requests: DomainRequests, tmp_path: Path, locked: Locked
) -> None:
    requests.join(NODE, "one")
    times = iter(range(0, 1000, 4))
    hurried = locked(lambda: float(next(times)))
    others = DomainRequests(tmp_path / "mps", time.monotonic, lock=hurried)
    with locked()(NODE.id):
        with pytest.raises(ConflictError, match="retried by itself"):
            others.leave(NODE.id, "one")
        others.tidy()
    assert requests.members(NODE.id) == {"one"}
