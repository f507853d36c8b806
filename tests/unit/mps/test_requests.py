"""The driver's side alone: what it leaves on disk, and which answers it believes."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clock import Clock
from dra_driver.errors import DeviceError, TransientError, VersionError
from dra_driver.host.ofd_lock import NamedLock
from dra_driver.mps.domain import (
    Domain,
    DomainDevice,
    DomainId,
    State,
    Status,
    encode,
    shared_domain,
)
from dra_driver.mps.files import MpsFiles
from dra_driver.mps.requests import SUPERVISOR_GRACE_SECONDS, DomainRequests

DOMAIN = Domain(id=DomainId("claim"), devices=(DomainDevice(uuid="GPU-1"),))
SHARED = replace(DOMAIN, id=shared_domain("node"))
NOW = 0.0


@pytest.fixture
def requests(tmp_path: Path) -> Iterator[DomainRequests]:
    requests = DomainRequests(tmp_path, lambda: NOW)
    yield requests
    requests.stop()


@pytest.fixture
def busy_supervisor(tmp_path: Path) -> Iterator[None]:
    """A supervisor that runs and never gets to its work."""
    lock = NamedLock(MpsFiles(root=tmp_path).lock)
    assert lock.take("busy")
    yield
    lock.release()


def test_a_domain_that_no_supervisor_has_answered_needs_none_to_end(
    requests: DomainRequests, busy_supervisor: None
) -> None:
    requests.write_desired(DOMAIN)
    requests.remove(DOMAIN.id)
    requests.wait_gone(DOMAIN.id, NOW)
    assert requests.list() == frozenset()


def test_a_begun_domain_is_not_gone_without_a_supervisor(requests: DomainRequests) -> None:
    requests.write_desired(DOMAIN)
    requests.paths(DOMAIN.id).folder.mkdir()
    requests.remove(DOMAIN.id)
    with pytest.raises(TransientError, match="the MPS supervisor is not running"):
        requests.wait_gone(DOMAIN.id, NOW)


def test_asking_for_the_same_again_touches_nothing(tmp_path: Path) -> None:
    requests = DomainRequests(tmp_path / "mps", time.monotonic)
    requests.write_desired(DOMAIN)
    path = tmp_path / "mps/desired/claim.json"
    before = path.stat()
    requests.write_desired(DOMAIN)
    assert path.stat() == before
    assert requests.desired(DOMAIN.id) == DOMAIN
    assert requests.list() == {"claim"}
    requests.remove(DOMAIN.id)
    requests.remove(DOMAIN.id)
    assert requests.desired(DOMAIN.id) is None


def test_damaged_files_count_as_absent(tmp_path: Path) -> None:
    requests = DomainRequests(tmp_path, time.monotonic)
    requests.write_desired(DOMAIN)
    (tmp_path / "desired/claim.json").write_bytes(b"{")
    (tmp_path / "status/claim.json").write_bytes(b"{")
    assert requests.desired(DOMAIN.id) is None
    assert requests.status(DOMAIN.id) is None


def newer(path: Path) -> bytes:
    """Let a newer version have written a file."""
    path.write_bytes(path.read_bytes().replace(b'"version":3', b'"version":4'))
    return path.read_bytes()


def test_a_newer_drivers_request_is_not_overwritten(tmp_path: Path) -> None:
    requests = DomainRequests(tmp_path, time.monotonic)
    requests.write_desired(DOMAIN)
    path = tmp_path / "desired/claim.json"
    data = newer(path)
    with pytest.raises(VersionError, match="run the same version of both on this node"):
        requests.write_desired(DOMAIN)
    assert path.read_bytes() == data
    requests.remove(DOMAIN.id)
    assert not path.exists()


def test_an_earlier_supervisors_status_is_no_answer(
    requests: DomainRequests, busy_supervisor: None, tmp_path: Path
) -> None:
    requests.write_desired(DOMAIN)
    path, generation = tmp_path / "status/claim.json", DOMAIN.generation
    status = Status(id=DOMAIN.id, state=State.READY, supervisor="former", generation=generation)
    path.write_bytes(encode(status))
    with pytest.raises(DeviceError, match="not ready yet"):
        requests.wait_ready(DOMAIN, NOW)
    path.write_bytes(encode(replace(status, supervisor="busy")))
    assert requests.wait_ready(DOMAIN, NOW).supervisor == "busy"


def test_a_newer_supervisors_answer_is_reported_as_such(
    tmp_path: Path, busy_supervisor: None
) -> None:
    requests = DomainRequests(tmp_path, time.monotonic)
    requests.write_desired(DOMAIN)
    path = tmp_path / "status/claim.json"
    path.write_bytes(encode(Status(id=DOMAIN.id, state=State.READY, supervisor="busy")))
    newer(path)
    with pytest.raises(VersionError, match="or of its MPS supervisor"):
        requests.wait_ready(DOMAIN, time.monotonic() + 30.0)


def answer(directory: Path, domain: Domain) -> Status:
    """Let the supervisor that runs say that a domain is ready."""
    status = Status(
        id=domain.id, state=State.READY, supervisor="busy", generation=domain.generation
    )
    (directory / f"status/{domain.id}.json").write_bytes(encode(status))
    return status


@pytest.fixture
def orphan(tmp_path: Path, requests: DomainRequests) -> Iterator[tuple[Status, socket.socket]]:
    """A domain that was ready when its supervisor ended, and whose daemon listens."""
    lock = NamedLock(MpsFiles(root=tmp_path).lock)
    assert lock.take("busy")
    lock.release()
    present = replace(SHARED, incarnation="1")
    requests.write_desired(present)
    status = answer(tmp_path, present)
    own = requests.paths(SHARED.id).own
    own.mkdir(parents=True)
    inside = os.open(own, os.O_PATH)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
        end.bind(f"/proc/self/fd/{inside}/control_privileged")
        os.close(inside)
        end.listen(8)
        yield status, end


@pytest.mark.parametrize(
    "changes",
    [
        {"state": State.FAULTED},
        {"state": State.RESTARTING},
        {"generation": "of another incarnation"},
        {"supervisor": "an earlier one"},
    ],
)
def test_a_domain_with_an_outdated_status_needs_a_supervisor(
    tmp_path: Path,
    requests: DomainRequests,
    orphan: tuple[Status, socket.socket],
    changes: dict[str, Any],
) -> None:
    status = replace(orphan[0], **changes)
    (tmp_path / f"status/{SHARED.id}.json").write_bytes(encode(status))
    with pytest.raises(DeviceError, match="the MPS supervisor is not running on this node"):
        requests.wait_ready(SHARED, NOW)


def test_a_link_to_another_daemons_socket_is_not_followed(
    tmp_path: Path, requests: DomainRequests, orphan: tuple[Status, socket.socket]
) -> None:
    name = requests.paths(SHARED.id).own / "control_privileged"
    name.rename(tmp_path / "other")
    name.symlink_to(tmp_path / "other")
    with pytest.raises(DeviceError, match="the MPS supervisor is not running on this node"):
        requests.wait_ready(SHARED, NOW)


def test_a_domain_that_was_joined_again_is_not_waited_for(
    tmp_path: Path, requests: DomainRequests, busy_supervisor: None
) -> None:
    requests.write_desired(SHARED)
    answer(tmp_path, SHARED)
    requests.remove(SHARED.id)
    with pytest.raises(TransientError, match="is not removed yet"):
        requests.wait_gone(SHARED.id, NOW)
    requests.write_desired(SHARED)
    requests.wait_gone(SHARED.id, NOW)
    assert requests.desired(SHARED.id) == SHARED


def test_a_domain_lists_its_members(tmp_path: Path, requests: DomainRequests) -> None:
    assert requests.members(SHARED.id) == frozenset()
    folder = tmp_path / "members" / SHARED.id
    folder.mkdir(parents=True)
    for name in ("one", "two", ".half", "no-id-"):
        (folder / name).touch()
    assert requests.members(SHARED.id) == {"one", "two"}


def test_each_absence_of_the_supervisor_has_its_own_grace(tmp_path: Path) -> None:
    clock, lock = Clock(), NamedLock(MpsFiles(root=tmp_path).lock)
    requests = DomainRequests(tmp_path, clock)
    there = iter([True, False, False])
    looks: list[float] = []

    def at_each_look() -> bool:
        looks.append(clock.now)
        clock.now += 0.9 * 3 * SUPERVISOR_GRACE_SECONDS  # three times, as one has run before
        if next(there):
            assert lock.take("supervisor")
        else:
            lock.release()
        return len(looks) == 3

    with pytest.raises(TransientError):
        requests.wait_ready(DOMAIN, clock.now + 1000, at_each_look)
    assert len(looks) == 3
    requests.stop()


def test_requests_are_synced(requests: DomainRequests, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    requests.write_desired(DOMAIN)
    assert synced
