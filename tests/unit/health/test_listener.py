"""The thread that waits for events: what it does with them, and how often it has GPUs looked at."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from testbed.commands import wait_until

from dra_driver.devices.health.listener import Listener
from dra_driver.devices.model import GpuEvent
from dra_driver.errors import DeviceError, DriverError, LostError, TransientError

Outcome = GpuEvent | Exception | None


class World:
    """What happens at each wait, and what came of it."""

    def __init__(self, *outcomes: Outcome, is_reason: bool = True) -> None:
        self._outcomes = list(outcomes)
        self._is_reason = is_reason
        self.heard: list[GpuEvent] = []
        self.looks = 0
        self.now = 0.0
        self.done = threading.Event()
        self.waits = 0

    def wait(self, _seconds: float) -> GpuEvent | None:
        if not self._outcomes:
            self.done.set()
            self.waits += 1
            time.sleep(0.001)
            return None
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def hear(self, event: GpuEvent) -> bool:
        self.heard.append(event)
        return self._is_reason

    def look(self) -> None:
        self.looks += 1

    def wait_again(self) -> None:
        """Wait until the listener has waited again, after which it looks or not, and once more."""
        before = self.waits
        wait_until(lambda: self.waits > before + 2, "waits", timeout=20, interval=0.001)

    @contextmanager
    def heard_out(self) -> Iterator[None]:
        listener = Listener(self.wait, self.hear, look=self.look, clock=lambda: self.now)
        listener.start()
        assert self.done.wait(20)
        yield
        listener.stop(10)


XID = GpuEvent(gpu="GPU-1", xid=79)


def test_an_event_causes_a_scan() -> None:
    world = World(None, XID)
    with world.heard_out():
        assert (world.heard, world.looks) == ([XID], 1)


def test_many_events_cause_one_scan_and_one_more_later() -> None:
    world = World(*[XID] * 500)
    with world.heard_out():
        assert (len(world.heard), world.looks) == (500, 1)
        world.now = 6.0
        world.wait_again()
        assert world.looks == 2
        world.now = 60.0
        world.wait_again()
        assert world.looks == 2


def test_xids_of_programs_are_counted_without_a_scan() -> None:
    world = World(*[XID] * 500, is_reason=False)
    with world.heard_out():
        assert (len(world.heard), world.looks) == (500, 0)


def test_a_loss_without_a_gpu_causes_a_scan() -> None:
    world = World(LostError("lost"))
    with world.heard_out():
        assert (world.heard, world.looks) == ([], 1)


@pytest.mark.parametrize("error", [TransientError("closed"), DeviceError("no")])
def test_it_goes_on_after_a_closed_nvml_and_a_refusal(error: DriverError) -> None:
    world = World(error, XID)
    with world.heard_out():
        assert world.heard == [XID]
