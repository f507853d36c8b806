"""The driver's side alone: what it leaves on disk, and whose word it takes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.errors import TransientError
from dra_driver.mps.desk import MpsDesk
from dra_driver.mps.domain import Domain, DomainDevice, DomainId
from dra_driver.mps.files import MpsFiles
from dra_driver.mps.lock import SupervisorLock

DOMAIN = Domain(id=DomainId("claim"), devices=(DomainDevice(uuid="GPU-1"),))
NOW = 0.0


@pytest.fixture
def desk(tmp_path: Path) -> MpsDesk:
    return MpsDesk(tmp_path, lambda: NOW)


@pytest.fixture
def busy_supervisor(tmp_path: Path) -> Iterator[None]:
    """A supervisor that runs and has no time."""
    lock = SupervisorLock(MpsFiles(root=tmp_path).lock)
    assert lock.take("busy")
    yield
    lock.release()


def test_a_wish_taken_back_at_once_is_not_gone_before_the_supervisor_has_seen_it(
    desk: MpsDesk, busy_supervisor: None
) -> None:
    desk.write_desired(DOMAIN)
    desk.remove(DOMAIN.id)
    assert desk.desired(DOMAIN.id) is None
    for _ in range(2):
        with pytest.raises(TransientError, match="not seen yet that it is not wanted any more"):
            desk.wait_gone(DOMAIN.id, NOW)
        desk.remove(DOMAIN.id)
    assert desk.list() == {DOMAIN.id}


def test_a_wish_that_no_supervisor_has_seen_needs_none_to_end(desk: MpsDesk) -> None:
    desk.write_desired(DOMAIN)
    desk.remove(DOMAIN.id)
    desk.wait_gone(DOMAIN.id, NOW)
    assert desk.list() == frozenset()


def test_what_nobody_asked_for_is_gone(desk: MpsDesk, busy_supervisor: None) -> None:
    desk.remove(DOMAIN.id)
    desk.wait_gone(DOMAIN.id, NOW)
    assert desk.list() == frozenset()


def test_what_was_begun_is_not_gone_without_a_supervisor(desk: MpsDesk) -> None:
    desk.write_desired(DOMAIN)
    desk.paths(DOMAIN.id).folder.mkdir()
    desk.remove(DOMAIN.id)
    with pytest.raises(TransientError, match="the MPS supervisor is not running"):
        desk.wait_gone(DOMAIN.id, NOW)
