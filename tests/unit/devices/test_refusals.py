"""When nothing is offered of a GPU that cannot be switched to MIG mode, and when it is again."""

import pytest
import structlog

import make
from dra_driver.devices.holders import Holder
from dra_driver.devices.mig.refusals import Refusals
from dra_driver.devices.model import GpuUuid, MigMode, MigSlot
from dra_driver.errors import BarredError, HeldError

ONE, TWO = make.gpu(0).uuid, make.gpu(1).uuid


class World:
    """A clock, the processes that have GPUs open, and what was told."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.open: dict[int, list[Holder]] = {}
        self.changes = 0
        self.refusals = Refusals(
            lambda minor: self.open.get(minor, []), lambda: self.now, self.told
        )

    def told(self) -> None:
        self.changes += 1

    def refuse(self, start: int = 0, user: str = "a", gpu: GpuUuid = ONE) -> None:
        minor = 0 if gpu == ONE else 1
        error = HeldError(f"because of {len(self.open)}", minor=minor)
        self.refusals.refused(MigSlot(gpu=gpu, profile_id=19, start=start), user, error)

    def refuse_for(self, seconds: int, user: str = "a") -> None:
        """Try once a second, as a prepare does, the last time after so many seconds."""
        self.refuse(user=user)
        for _ in range(seconds):
            self.now += 1
            self.refuse(user=user)

    @property
    def held(self) -> set[GpuUuid]:
        return set(self.refusals.current())

    def offered_after(self) -> float:
        """Let time pass until the partitions are offered again; return how much it was."""
        start = self.now
        while (seconds := self.refusals.check()) and self.held:
            self.now += seconds
        return self.now - start


@pytest.fixture
def world() -> World:
    return World()


def test_a_look_of_some_seconds_withdraws_nothing(world: World) -> None:
    world.refuse_for(4)
    assert (world.held, world.changes) == (set(), 0)
    world.refusals.switched(ONE)
    world.now += 3
    world.refuse()
    assert world.held == set()


def test_a_gpu_that_refuses_for_longer_is_held_back_alone_and_told_once(world: World) -> None:
    with structlog.testing.capture_logs() as said:
        world.refuse(gpu=TWO)
        world.refuse_for(40)

    assert world.held == {ONE}
    assert world.changes == 1
    (line,) = said
    assert line == {
        "event": "mig partitions withdrawn",
        "log_level": "warning",
        "gpu": ONE,
        "reason": "because of 0",
        "seconds": 120,
    }


def test_it_is_offered_again_after_two_minutes_and_ever_more_rarely(world: World) -> None:
    world.refuse_for(5)
    times = []
    for _ in range(6):
        times.append(round(world.offered_after()))
        world.refuse()
        assert world.held == {ONE}

    assert times == [120, 125, 250, 500, 600, 600]


def test_whoever_keeps_trying_keeps_it_withdrawn(world: World) -> None:
    world.refuse_for(5)
    for _ in range(5):
        world.now += 115
        world.refusals.check()
        world.refuse()
    assert (world.held, world.changes) == ({ONE}, 1)


def test_after_as_long_again_in_peace_a_refusal_is_the_first_again(world: World) -> None:
    world.refuse_for(5)
    world.offered_after()
    world.now += 121
    world.refuse()
    assert world.held == set()
    world.refuse_for(5)
    assert round(world.offered_after()) == 120


def test_it_is_offered_again_at_once_when_it_is_in_mig_mode(world: World) -> None:
    world.refuse_for(5)
    world.refusals.look_at(make.inventory(make.gpu(0, mig_mode=MigMode.DISABLED)))
    assert world.held == {ONE}
    world.refusals.look_at(make.inventory(make.gpu(0, mig_mode=MigMode.ENABLED)))
    assert (world.held, world.changes) == (set(), 2)

    world.refuse_for(5)
    world.refusals.switched(ONE)
    assert world.held == set()


def test_a_gpu_that_is_gone_is_forgotten(world: World) -> None:
    world.refuse_for(5)
    world.refusals.look_at(make.inventory(make.gpu(1)))
    assert world.held == set()


def test_it_is_offered_again_when_those_who_had_it_open_are_gone(world: World) -> None:
    world.open = {0: [Holder(pid=1, name="dcgm")]}
    world.refuse_for(5)
    assert world.refusals.check() == 5
    assert world.held == {ONE}
    world.open = {1: [Holder(pid=1, name="dcgm")]}
    with structlog.testing.capture_logs() as said:
        world.refusals.check()

    assert world.held == set()
    assert [line["why"] for line in said] == ["nobody has it open any more"]


def test_who_was_never_seen_is_not_taken_for_gone(world: World) -> None:
    world.refuse_for(5)
    for _ in range(5):
        world.refusals.check()
    assert world.held == {ONE}


def test_devices_that_are_waited_for_are_known_until_they_are_given_up(world: World) -> None:
    def waiting() -> set[int]:
        return {slot.start for slot in world.refusals.current()[ONE].waiting}

    world.refuse(start=0, user="a")
    world.refuse(start=1, user="b")
    world.now += 6
    world.refuse(start=2, user="b")
    assert waiting() == {0, 1, 2}
    world.refusals.given_up("b")
    assert waiting() == {0}
    assert world.changes == 2
    world.refusals.given_up("nobody")
    assert world.changes == 2


def test_a_thread_looks_by_itself_and_ends_when_told(world: World) -> None:
    world.refusals.start()
    world.refuse_for(5)
    world.refusals.stop(30)
    world.refusals.stop(30)
    assert world.held == {ONE}


def bar(world: World, start: int = 0, user: str = "a") -> None:
    slot = MigSlot(gpu=ONE, profile_id=19, start=start)
    world.refusals.barred(slot, user, BarredError("not by this driver"))


def test_where_nobody_can_make_a_device_the_first_refusal_counts_also_in_mig_mode() -> None:
    world = World()
    bar(world)
    (refusal,) = world.refusals.current().values()
    assert (refusal.reason, refusal.is_of_mode) == ("not by this driver", False)
    assert [slot.start for slot in refusal.waiting] == [0]
    in_mig_mode = make.gpu(0, mig_mode=MigMode.ENABLED)
    world.refusals.look_at(make.inventory(in_mig_mode))
    assert world.refusals.current(), "its mode is not the reason"
    world.refusals.look_at(make.inventory(make.gpu(1)))
    assert world.refusals.current() == {}, "the GPU is gone"


def test_it_is_tried_again_after_a_while_and_a_device_that_is_made_ends_it() -> None:
    world = World()
    bar(world)
    world.refusals.check()
    world.now += 119
    world.refusals.check()
    assert world.refusals.current()
    world.now += 2
    world.refusals.check()
    assert world.refusals.current() == {}
    bar(world, user="b")
    assert world.refusals.current(), "at once, not after a few seconds"
    world.refusals.switched(ONE)
    assert world.refusals.current() == {}
