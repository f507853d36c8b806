"""How long an evicted driver waits for claims; the whole of it is in tests/contract."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.errors import StateError, UnavailableError
from dra_driver.host.ofd_lock import holder_of
from dra_driver.kubelet.eviction import Eviction

PAUSED = {"pool": "a", "nvidia.com/dra-driver": "paused-for-driver-upgrade"}
USUAL = {"pool": "a", "nvidia.com/dra-driver": "true"}


class World:
    """A Node, its claims, and a clock that goes on by the seconds of each pause."""

    def __init__(self, folder: Path, *, labels: dict[str, str] | None, longest: float) -> None:
        self.labels = labels
        self.claims = 1
        self.now = 0.0
        self.at_each_pause: Callable[[], object] = lambda: None
        self.lock = folder / "mps" / "eviction.lock"
        self.eviction = Eviction(
            self,
            "node-1",
            is_in_use=lambda: self.claims > 0,
            lock=self.lock,
            longest=longest,
            clock=lambda: self.now,
        )

    def get_node(self, name: str, *, timeout: float) -> dict[str, object]:
        assert (name, timeout < 5) == ("node-1", True)
        if self.labels is None:
            raise UnavailableError("no answer")
        return {"metadata": {"labels": self.labels}}

    def pause(self, seconds: float) -> bool:
        self.now += seconds
        self.at_each_pause()
        return False


@pytest.fixture
def world(tmp_path: Path) -> World:
    (tmp_path / "mps").mkdir()
    return World(tmp_path, labels=dict(PAUSED), longest=600)


@pytest.mark.parametrize("labels", [USUAL, {}, None])
def test_a_driver_that_is_not_evicted_ends_at_once(
    world: World, labels: dict[str, str] | None
) -> None:
    world.labels = labels
    assert not world.eviction.wait_for_claims(world.pause)
    assert (world.now, world.lock.exists()) == (0, False)


def test_without_claims_an_evicted_driver_ends_at_once(world: World) -> None:
    world.claims = 0
    assert world.eviction.wait_for_claims(world.pause)
    assert (world.now, world.lock.exists()) == (0, False)


def test_a_label_with_another_value_than_true_counts(world: World) -> None:
    world.labels = {"nvidia.com/dra-driver": "a_paused-for-driver-upgrade"}
    world.claims = 0
    assert world.eviction.wait_for_claims(world.pause)


def test_it_ends_when_the_labels_return(world: World) -> None:
    world.at_each_pause = lambda: setattr(world, "labels", USUAL) if world.now > 60 else None
    assert world.eviction.wait_for_claims(world.pause)
    assert 60 < world.now < 65


def test_an_api_server_that_is_away_meanwhile_changes_nothing(world: World) -> None:
    world.at_each_pause = lambda: setattr(world, "labels", None)
    assert world.eviction.wait_for_claims(world.pause)
    assert world.now == pytest.approx(600, abs=1)
    assert holder_of(world.lock) is None


def test_a_second_signal_ends_it_at_once(world: World) -> None:
    assert world.eviction.wait_for_claims(lambda _: True)
    assert holder_of(world.lock) is None


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    world = World(tmp_path, labels=dict(PAUSED), longest=0)
    assert world.eviction.wait_for_claims(world.pause)
    assert world.now == 0


def test_claims_that_cannot_be_read_are_not_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path, labels=dict(PAUSED), longest=600)

    def unreadable() -> bool:
        raise StateError("no disk")

    world.eviction = Eviction(
        world, "node-1", is_in_use=unreadable, lock=world.lock, longest=600, clock=lambda: 0.0
    )
    assert world.eviction.wait_for_claims(world.pause)


def test_a_node_without_mps_gets_no_lock(tmp_path: Path) -> None:
    world = World(tmp_path, labels=dict(PAUSED), longest=1)
    assert world.eviction.wait_for_claims(world.pause)
    assert world.now >= 1
    assert not world.lock.exists()
