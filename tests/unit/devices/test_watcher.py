"""The inventory's thread: what it reports, and that nothing stops it but `stop`."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from structlog.testing import capture_logs

import make
from dra_driver.devices.model import Inventory, NvLink, SickGpu
from dra_driver.devices.watcher import InventoryWatcher
from dra_driver.errors import DeviceError

TIMEOUT = 30.0
NEVER = 3600.0


class Machine:
    """Hands out one prepared look after another; the last stays."""

    def __init__(self, *looks: Inventory | Exception) -> None:
        self._looks = list(looks)
        self.looked: queue.Queue[None] = queue.Queue()

    def look(self) -> Inventory:
        look = self._looks[0] if len(self._looks) == 1 else self._looks.pop(0)
        self.looked.put(None)
        if isinstance(look, Exception):
            raise look
        return look


@contextmanager
def watching(
    machine: Machine, on_change: Callable[[Inventory], None], *, rescan_seconds: float = NEVER
) -> Iterator[InventoryWatcher]:
    watcher = InventoryWatcher(machine.look, rescan_seconds=rescan_seconds, on_change=on_change)
    watcher.start()
    try:
        yield watcher
    finally:
        assert watcher.stop(TIMEOUT)


def test_before_the_first_scan_there_is_a_reason_but_no_gpu() -> None:
    watcher = InventoryWatcher(make.inventory, rescan_seconds=NEVER, on_change=lambda _: None)

    assert watcher.current().gpus == ()
    assert watcher.current().problem == "this node's GPUs are not known yet"
    assert not watcher.wait_until_looked(0)
    assert watcher.stop(0)


def test_the_first_scan_is_reported() -> None:
    changes: queue.Queue[Inventory] = queue.Queue()
    with watching(Machine(make.inventory()), changes.put) as watcher:
        assert changes.get(timeout=TIMEOUT) == make.inventory()
        assert watcher.wait_until_looked(TIMEOUT)
        assert watcher.current() == make.inventory()


def test_an_unchanged_machine_is_reported_once() -> None:
    changes: queue.Queue[Inventory] = queue.Queue()
    machine = Machine(make.inventory())
    with watching(machine, changes.put, rescan_seconds=0.001):
        for _ in range(5):
            machine.looked.get(timeout=TIMEOUT)

    assert changes.qsize() == 1


def test_a_gpu_that_goes_and_comes_back_is_reported_each_time() -> None:
    both, one = make.inventory(), make.inventory(make.gpu(0))
    changes: queue.Queue[Inventory] = queue.Queue()
    machine = Machine(both, one, both)
    with watching(machine, changes.put, rescan_seconds=0.001):
        seen = [changes.get(timeout=TIMEOUT) for _ in range(3)]

    assert seen == [both, one, both]


def test_a_missing_driver_is_an_empty_inventory_with_the_reason_and_is_retried() -> None:
    changes: queue.Queue[Inventory] = queue.Queue()
    missing = DeviceError("libnvidia-ml.so.1 not found")
    machine = Machine(missing, missing, make.inventory())
    with watching(machine, changes.put, rescan_seconds=0.001):
        first, second = (changes.get(timeout=TIMEOUT) for _ in range(2))

    assert first == Inventory(
        driver_version=None, cuda_version=None, problem="libnvidia-ml.so.1 not found"
    )
    assert second == make.inventory()


def test_a_cause_is_logged_once_and_again_when_it_changes() -> None:
    missing, unloaded = DeviceError("not found"), DeviceError("not loaded")
    machine = Machine(missing, missing, missing, unloaded, unloaded)
    with capture_logs() as logs, watching(machine, lambda _: None, rescan_seconds=0.001):
        for _ in range(6):
            machine.looked.get(timeout=TIMEOUT)

    assert [entry["cause"] for entry in logs] == ["not found", "not loaded"]
    assert {entry["event"] for entry in logs} == {"gpus not available"}


def test_a_sick_gpu_is_logged_once() -> None:
    sick = make.inventory(sick=(SickGpu(index=3, reason="it is lost"),))
    other = make.inventory(make.gpu(0), sick=(SickGpu(index=3, reason="it is lost"),))
    machine = Machine(make.inventory(), sick, other)
    with capture_logs() as logs, watching(machine, lambda _: None, rescan_seconds=0.001):
        for _ in range(5):
            machine.looked.get(timeout=TIMEOUT)

    errors = [entry for entry in logs if entry["log_level"] == "error"]
    assert [(entry["index"], entry["cause"]) for entry in errors] == [(3, "it is lost")]


def test_nvlinks_are_logged_as_they_go_down_and_come_up() -> None:
    def linked(*active: int) -> Inventory:
        links = (NvLink(number=n, is_active=n in active, to_switch=True) for n in range(3))
        return make.inventory(make.gpu(0, nvlinks=tuple(links)))

    machine = Machine(linked(0, 1), linked(1), linked(1, 2), linked(1, 2))
    with capture_logs() as logs, watching(machine, lambda _: None, rescan_seconds=0.001):
        for _ in range(4):
            machine.looked.get(timeout=TIMEOUT)
    said = [
        (entry["log_level"], entry["event"], entry["links"]) for entry in logs if "links" in entry
    ]
    assert said == [("warning", "nvlinks went down", [0]), ("info", "nvlinks came up", [2])]


def test_a_fault_in_the_program_ends_the_thread_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    died: queue.Queue[threading.ExceptHookArgs] = queue.Queue()
    monkeypatch.setattr(threading, "excepthook", died.put)
    watcher = InventoryWatcher(
        Machine(ZeroDivisionError()).look, rescan_seconds=NEVER, on_change=lambda _: None
    )
    watcher.start()

    fault = died.get(timeout=TIMEOUT)
    assert fault.exc_type is ZeroDivisionError
    assert fault.thread is not None
    assert fault.thread.name == "inventory"


def test_a_watcher_can_be_stopped_while_it_waits() -> None:
    machine = Machine(make.inventory())
    with watching(machine, lambda _: None) as watcher:
        assert watcher.wait_until_looked(TIMEOUT)
