"""When nothing is offered of a GPU that cannot be switched to MIG mode, and when it is again."""

import pytest
import structlog
from testbed.commands import wait_until

import make
from dra_driver.devices.mig.refusals import PAUSE_SECONDS, Refusals
from dra_driver.devices.model import GpuUuid, MigMode, MigSlot
from dra_driver.errors import BarredError, HeldError

ONE, TWO = make.gpu(0).uuid, make.gpu(1).uuid


class World:
    """A clock, GPUs that refuse, and what was told."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.changes = 0
        self.refusals = Refusals(lambda: self.now, self.told)

    def told(self) -> None:
        self.changes += 1

    def refuse(self, start: int = 0, user: str = "a", gpu: GpuUuid = ONE) -> None:
        error = HeldError("others have it open", minor=0)
        self.refusals.refused(MigSlot(gpu=gpu, profile_id=19, start=start), user, error)

    def bar(self) -> None:
        error = BarredError("not by this driver")
        self.refusals.refused(MigSlot(gpu=ONE, profile_id=19, start=0), "a", error)

    @property
    def held(self) -> set[GpuUuid]:
        return set(self.refusals.current())


@pytest.fixture
def world() -> World:
    return World()


def test_only_a_refusing_gpu_is_held_back_and_logged_once(world: World) -> None:
    with structlog.testing.capture_logs() as said:
        for _ in range(40):
            world.refuse()
            world.now += 1
    assert (world.held, world.changes) == ({ONE}, 1)
    (line,) = said
    assert line == {
        "event": "mig partitions withdrawn",
        "log_level": "warning",
        "gpu": ONE,
        "reason": "others have it open",
    }


def test_it_is_offered_again_two_minutes_after_the_last_refusal_each_time(world: World) -> None:
    for _ in range(3):
        world.refuse()
        world.now += 60
        world.refuse()
        assert world.refusals.check() == PAUSE_SECONDS
        world.now += 119
        assert (world.refusals.check(), world.held) == (1, {ONE})
        world.now += 1
        assert (world.refusals.check(), world.held) == (PAUSE_SECONDS, set())


def test_repeated_tries_keep_it_withdrawn(world: World) -> None:
    for _ in range(5):
        world.refuse()
        world.now += 115
        world.refusals.check()
    assert (world.held, world.changes) == ({ONE}, 1)


def test_the_pause_of_one_gpu_is_not_that_of_another(world: World) -> None:
    world.refuse()
    world.now += 50
    world.refuse(gpu=TWO)
    world.now += 70
    assert (world.refusals.check(), world.held) == (50, {TWO})


def test_it_is_offered_again_at_once_when_it_is_in_mig_mode(world: World) -> None:
    world.refuse()
    world.refusals.look_at(make.inventory(make.gpu(0, mig_mode=MigMode.DISABLED)))
    assert world.held == {ONE}
    world.refusals.look_at(make.inventory(make.gpu(0, mig_mode=MigMode.ENABLED)))
    assert (world.held, world.changes) == (set(), 2)

    world.refuse()
    world.refusals.switched(ONE)
    assert world.held == set()


def test_a_gpu_that_is_gone_is_forgotten(world: World) -> None:
    world.refuse()
    world.refusals.look_at(make.inventory(make.gpu(1)))
    assert world.held == set()


def test_devices_that_are_waited_for_are_known_until_they_are_given_up(world: World) -> None:
    def waiting() -> set[int]:
        return {slot.start for slot in world.refusals.current()[ONE].waiting}

    world.refuse(start=0, user="a")
    world.refuse(start=1, user="b")
    world.refuse(start=2, user="b")
    assert waiting() == {0, 1, 2}
    changes = world.changes
    world.refusals.given_up("b")
    assert waiting() == {0}
    assert world.changes == changes + 1
    world.refusals.given_up("nobody")
    assert world.changes == changes + 1


def test_a_thread_looks_by_itself_and_ends_when_told(world: World) -> None:
    world.refuse()
    world.now += PAUSE_SECONDS
    world.refusals.start()
    wait_until(lambda: not world.held, "the pause to end", timeout=30, interval=0.01)
    world.refusals.stop(30)
    world.refusals.stop(30)


def test_where_nobody_can_make_a_device_the_mode_does_not_matter(world: World) -> None:
    world.refuse()
    world.bar()
    (refusal,) = world.refusals.current().values()
    assert (refusal.reason, refusal.is_of_mode) == ("not by this driver", False)
    assert [slot.start for slot in refusal.waiting] == [0]
    in_mig_mode = make.gpu(0, mig_mode=MigMode.ENABLED)
    world.refusals.look_at(make.inventory(in_mig_mode))
    assert world.refusals.current(), "its mode is not the reason"
    world.refusals.switched(ONE)
    assert world.refusals.current() == {}
