"""Shared domains on disk alone: who is a member, what is asked for, and what a bad disk leaves."""

import errno
import fcntl
import os
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.devices.device import DeviceKind
from dra_driver.errors import ConflictError, StateError, VersionError
from dra_driver.host.files import look_of
from dra_driver.mps.domain import (
    Domain,
    DomainDevice,
    DomainId,
    State,
    Status,
    encode_status,
    shared_domain,
)
from dra_driver.mps.members import LOCK_SECONDS, SharedDomains
from dra_driver.mps.requests import DomainRequests

GPU = "GPU-00000000-0000-4000-8000-000000000001"
OTHER_GPU = "GPU-00000000-0000-4000-8000-000000000002"
MIG = "MIG-00000000-0000-4000-8000-000000000001"
NODE = Domain(id=shared_domain("node"), devices=(DomainDevice(uuid=GPU),))
OTHER = Domain(id=shared_domain(OTHER_GPU), devices=(DomainDevice(uuid=OTHER_GPU),))


@pytest.fixture
def requests(tmp_path: Path) -> DomainRequests:
    return DomainRequests(tmp_path / "mps", time.monotonic)


@pytest.fixture
def shared(tmp_path: Path, requests: DomainRequests) -> SharedDomains:
    return SharedDomains(tmp_path / "mps", requests, time.monotonic)


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


def test_each_knows_of_the_other(shared: SharedDomains) -> None:
    shared.join(NODE, "one")
    shared.join(NODE, "two")
    shared.join(OTHER, "two")
    assert shared.joined("one") == {NODE.id}
    assert shared.joined("two") == {NODE.id, OTHER.id}
    assert shared.joined("three") == frozenset()
    assert shared.claims() == {"one", "two"}


def test_joining_again_touches_nothing(
    shared: SharedDomains, requests: DomainRequests, tmp_path: Path
) -> None:
    shared.join(NODE, "one")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    before = [look_of(path) for path in files]
    shared.join(NODE, "one")
    assert [look_of(path) for path in files] == before


def test_leaving_again_is_fine_and_ends_nothing_that_others_use(
    shared: SharedDomains, requests: DomainRequests
) -> None:
    assert shared.leave(NODE.id, "one")
    shared.join(NODE, "two")
    assert not shared.leave(NODE.id, "one")
    assert asked_for(requests) == NODE


def test_the_last_to_leave_ends_a_domain_whose_folder_is_gone(
    shared: SharedDomains, requests: DomainRequests, tmp_path: Path
) -> None:
    shared.join(NODE, "one")
    (tmp_path / "mps/members" / NODE.id / "one").unlink()
    (tmp_path / "mps/members" / NODE.id).rmdir()
    assert shared.leave(NODE.id, "one")
    assert asked_for(requests) is None
    requests.wait_gone(NODE.id, time.monotonic())
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"devices": (DomainDevice(uuid=OTHER_GPU),)}, f"devices {GPU}, wanted {OTHER_GPU}"),
        (
            {"devices": (DomainDevice(uuid=GPU, pinned_memory_mib=512),)},
            f"pinned memory limit of {GPU} none, wanted 512 MiB",
        ),
        ({"active_thread_percentage": 25}, "active thread percentage none, wanted 25 %"),
        ({"multi_user": True}, "a server for one user, wanted for all users"),
    ],
)
def test_a_domain_that_others_use_does_not_change_and_the_error_says_how_it_differs(
    shared: SharedDomains, requests: DomainRequests, changes: dict[str, object], words: str
) -> None:
    changed = replace(NODE, **changes)  # type: ignore[arg-type]
    shared.join(NODE, "one")
    with pytest.raises(ConflictError, match="in use by 1 other claim") as caught:
        shared.join(changed, "two")
    assert words in str(caught.value)
    assert shared.members(NODE.id) == {"one"}
    assert asked_for(requests) == NODE
    # With nobody else in it, it takes the new form, for the member that is there as well.
    shared.join(changed, "one")
    assert asked_for(requests) == changed


def test_a_mig_device_can_have_a_shared_domain(
    shared: SharedDomains, requests: DomainRequests
) -> None:
    device = DomainDevice(uuid=MIG, kind=DeviceKind.MIG)
    domain = Domain(id=shared_domain(MIG), devices=(device,))
    shared.join(domain, "one")
    assert asked_for(requests, domain.id) == domain


@pytest.mark.parametrize("claim", ["", "..", "../two", "a/b", ".half", "a\0b", "x" * 129])
def test_a_claim_with_a_hostile_name_is_refused(
    shared: SharedDomains, tmp_path: Path, claim: str
) -> None:
    with pytest.raises(StateError, match="not a valid claim UID"):
        shared.join(NODE, claim)
    with pytest.raises(StateError, match="not a valid claim UID"):
        shared.leave(NODE.id, claim)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("domain", ["claim", "claim_mig_0", "../shared_x", "shared_../x"])
def test_what_is_no_shared_domain_can_be_neither_joined_nor_left(
    shared: SharedDomains, tmp_path: Path, domain: str
) -> None:
    with pytest.raises(StateError, match=r"not the id of a shared|not a valid domain id"):
        shared.leave(DomainId(domain), "one")
    assert list(tmp_path.iterdir()) == []


def test_a_claims_own_domain_cannot_be_joined(shared: SharedDomains) -> None:
    with pytest.raises(StateError, match="not the id of a shared MPS domain"):
        shared.join(replace(NODE, id=DomainId("claim")), "one")


@pytest.mark.parametrize("has_folder", [True, False])
def test_tidying_ends_what_nobody_is_left_in(
    shared: SharedDomains, requests: DomainRequests, tmp_path: Path, *, has_folder: bool
) -> None:
    shared.join(NODE, "one")
    shared.join(OTHER, "two")
    requests.write_desired(replace(NODE, id=DomainId("claim")))
    (tmp_path / "mps/members" / NODE.id / "one").unlink()  # and then it was killed
    if not has_folder:
        (tmp_path / "mps/members" / NODE.id).rmdir()
    assert shared.tidy() == {NODE.id}
    assert requests.desired(NODE.id) is None
    assert asked_for(requests, OTHER.id) == OTHER
    assert requests.desired(DomainId("claim")) is not None
    assert shared.tidy() == frozenset()
    assert not (tmp_path / "mps/members" / NODE.id).exists()


def test_a_domain_that_cannot_be_ended_keeps_no_other_from_it(
    shared: SharedDomains, requests: DomainRequests, tmp_path: Path
) -> None:
    bad, good = sorted((NODE, OTHER), key=lambda one: one.id)
    for domain in (bad, good):
        shared.join(domain, "one")
        (tmp_path / "mps/members" / domain.id / "one").unlink()
    (tmp_path / "mps/members" / bad.id).rmdir()
    (tmp_path / "mps/members" / bad.id).touch()
    with pytest.raises(StateError):
        shared.tidy()
    assert requests.desired(good.id) is None


def test_tidying_before_anything_was_joined_does_nothing(
    shared: SharedDomains, tmp_path: Path
) -> None:
    assert shared.tidy() == frozenset()
    assert list(tmp_path.iterdir()) == []


def test_what_is_damaged_is_mended_by_the_next_to_join(
    shared: SharedDomains, requests: DomainRequests, tmp_path: Path
) -> None:
    shared.join(NODE, "one")
    (tmp_path / f"mps/desired/{NODE.id}.json").write_bytes(b"{")
    shared.join(NODE, "two")
    assert asked_for(requests) == NODE


def test_a_domain_that_failed_is_asked_for_once_more_by_whoever_joins(
    shared: SharedDomains, requests: DomainRequests, tmp_path: Path
) -> None:
    shared.join(NODE, "one")
    failed = Status(id=NODE.id, state=State.FAILED, supervisor="s")
    (tmp_path / f"mps/status/{NODE.id}.json").write_bytes(encode_status(failed))
    path = tmp_path / f"mps/desired/{NODE.id}.json"
    before, content = path.stat(), path.read_bytes()
    shared.join(NODE, "two")
    assert path.stat().st_mtime_ns > before.st_mtime_ns
    assert path.read_bytes() == content


def test_what_a_newer_driver_asks_for_is_left_to_it(shared: SharedDomains, tmp_path: Path) -> None:
    shared.join(NODE, "one")
    path = tmp_path / f"mps/desired/{NODE.id}.json"
    newer = path.read_bytes().replace(b'"version":1', b'"version":2')
    path.write_bytes(newer)
    with pytest.raises(VersionError, match="run the same version of both"):
        shared.join(NODE, "two")
    assert path.read_bytes() == newer
    assert shared.members(NODE.id) == {"one"}


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_join_that_fails_ends_a_domain_that_nobody_was_in(
    shared: SharedDomains, requests: DomainRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests.write_desired(NODE)  # for a claim whose driver was killed while it left
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StateError, match="No space left on device"):
            shared.join(replace(NODE, multi_user=True), "one")
    assert asked_for(requests) is None


def test_a_join_waits_for_another_call_of_the_same_domain_and_of_no_other(
    shared: SharedDomains, tmp_path: Path
) -> None:
    shared.join(NODE, "one")
    folder = os.open(tmp_path / "mps/members" / NODE.id, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)  # as another process holds it
    waiting = threading.Thread(target=shared.join, args=(NODE, "two"))
    waiting.start()
    shared.join(OTHER, "three")
    assert shared.members(NODE.id) == {"one"}
    os.close(folder)
    waiting.join(LOCK_SECONDS)
    assert shared.members(NODE.id) == {"one", "two"}


def test_a_join_that_waited_while_the_last_one_left_makes_the_domain_again(
    shared: SharedDomains, requests: DomainRequests, tmp_path: Path
) -> None:
    members = tmp_path / "mps/members" / NODE.id
    members.mkdir(parents=True)
    folder = os.open(members, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    waiting = threading.Thread(target=shared.join, args=(NODE, "two"))
    waiting.start()
    time.sleep(0.05)
    members.rmdir()  # as the last to leave does, at the end
    os.close(folder)
    waiting.join(LOCK_SECONDS)
    assert shared.members(NODE.id) == {"two"}
    assert asked_for(requests) == NODE


def test_a_call_that_never_ends_is_not_waited_for_for_ever(
    shared: SharedDomains, requests: DomainRequests, tmp_path: Path
) -> None:
    shared.join(NODE, "one")
    times = iter(range(0, 1000, 4))
    hurried = SharedDomains(tmp_path / "mps", requests, lambda: float(next(times)))
    folder = os.open(tmp_path / "mps/members" / NODE.id, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    try:
        with pytest.raises(ConflictError, match="retried by itself"):
            hurried.leave(NODE.id, "one")
        assert hurried.tidy() == frozenset()
    finally:
        os.close(folder)
    assert shared.members(NODE.id) == {"one"}
