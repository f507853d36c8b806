"""The driver's side alone: what it leaves on disk, and which answers it believes."""

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.errors import TransientError, VersionError
from dra_driver.mps.domain import Domain, DomainDevice, DomainId, State, Status, encode_status
from dra_driver.mps.files import MpsFiles
from dra_driver.mps.lock import SupervisorLock
from dra_driver.mps.requests import DomainRequests

DOMAIN = Domain(id=DomainId("claim"), devices=(DomainDevice(uuid="GPU-1"),))
NOW = 0.0


@pytest.fixture
def requests(tmp_path: Path) -> DomainRequests:
    return DomainRequests(tmp_path, lambda: NOW)


@pytest.fixture
def busy_supervisor(tmp_path: Path) -> Iterator[None]:
    """A supervisor that runs and never gets to its work."""
    lock = SupervisorLock(MpsFiles(root=tmp_path).lock)
    assert lock.take("busy")
    yield
    lock.release()


def test_a_domain_removed_at_once_is_not_gone_before_the_supervisor_has_seen_it(
    requests: DomainRequests, busy_supervisor: None
) -> None:
    requests.write_desired(DOMAIN)
    requests.remove(DOMAIN.id)
    assert requests.desired(DOMAIN.id) is None
    for _ in range(2):
        with pytest.raises(TransientError, match="not seen yet that it is no longer wanted"):
            requests.wait_gone(DOMAIN.id, NOW)
        requests.remove(DOMAIN.id)
    assert requests.list() == {DOMAIN.id}


def test_a_domain_that_no_supervisor_has_seen_needs_none_to_end(requests: DomainRequests) -> None:
    requests.write_desired(DOMAIN)
    requests.remove(DOMAIN.id)
    requests.wait_gone(DOMAIN.id, NOW)
    assert requests.list() == frozenset()


def test_what_nobody_asked_for_is_gone(requests: DomainRequests, busy_supervisor: None) -> None:
    requests.remove(DOMAIN.id)
    requests.wait_gone(DOMAIN.id, NOW)
    assert requests.list() == frozenset()


def test_what_was_begun_is_not_gone_without_a_supervisor(requests: DomainRequests) -> None:
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


def test_a_domain_that_never_was_is_gone_also_without_a_supervisor(tmp_path: Path) -> None:
    requests = DomainRequests(tmp_path / "mps", time.monotonic)
    requests.wait_gone(DOMAIN.id, time.monotonic())
    assert not requests.supervisor_runs()


def test_damaged_files_say_nothing(tmp_path: Path) -> None:
    requests = DomainRequests(tmp_path, time.monotonic)
    requests.write_desired(DOMAIN)
    (tmp_path / "desired/claim.json").write_bytes(b"{")
    (tmp_path / "status/claim.json").write_bytes(b"{")
    assert requests.desired(DOMAIN.id) is None
    assert requests.status(DOMAIN.id) is None


def newer(path: Path) -> bytes:
    """Let a newer version have written a file."""
    path.write_bytes(path.read_bytes().replace(b'"version":1', b'"version":2'))
    return path.read_bytes()


def test_what_a_newer_driver_asks_for_is_not_asked_for_in_an_older_way(tmp_path: Path) -> None:
    requests = DomainRequests(tmp_path, time.monotonic)
    requests.write_desired(DOMAIN)
    path = tmp_path / "desired/claim.json"
    data = newer(path)
    with pytest.raises(VersionError, match="run both in the same version on this node"):
        requests.write_desired(DOMAIN)
    assert path.read_bytes() == data
    requests.remove(DOMAIN.id)
    assert not path.exists()


def test_the_answer_of_a_newer_supervisor_is_said_to_be_one(
    tmp_path: Path, busy_supervisor: None
) -> None:
    requests = DomainRequests(tmp_path, time.monotonic)
    requests.write_desired(DOMAIN)
    path = tmp_path / "status/claim.json"
    path.write_bytes(encode_status(Status(id=DOMAIN.id, state=State.READY, supervisor="busy")))
    newer(path)
    with pytest.raises(VersionError, match="or of its MPS supervisor"):
        requests.wait_ready(DOMAIN, time.monotonic() + 30.0)


def test_a_removal_needs_no_free_byte(
    tmp_path: Path, busy_supervisor: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = DomainRequests(tmp_path, time.monotonic)
    requests.write_desired(DOMAIN)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    monkeypatch.setattr(Path, "write_bytes", full)
    requests.remove(DOMAIN.id)
    assert requests.desired(DOMAIN.id) is None
    status = requests.status(DOMAIN.id)
    assert status is not None
    assert status.state is State.STOPPING
