"""A simulated GPU hangs in a call, as a card with a dead firmware does."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.devices.nvml.calls import NVML, NvmlCalls
from dra_driver.devices.session import DriverSession
from dra_driver.errors import SilenceError
from dra_driver.simulator.machine import Machine
from worlds.session import session_on

HANG_MS = 600_000
"""Longer than a test: what waits for the call does not pass."""


class Node:
    """Two GPUs, of which the second may hang, and a session that waits two seconds for each."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.calls = NvmlCalls(clock=time.monotonic, answer_seconds=2.0)
        self.session: DriverSession = session_on(machine, calls=self.calls)
        self.gpus = self.session.look().gpus
        self.healthy, self.hung = self.gpus[0], self.gpus[1]

    def hang(self, function: str, uuid: str | None = None, times: int = 1) -> None:
        self.machine.slow_call(function, HANG_MS, uuid=uuid, times=times)

    def wait_until_it_answers(self) -> None:
        self.machine.clear_faults()
        end = time.monotonic() + 60
        while self.calls.silent:
            assert time.monotonic() < end
            time.sleep(0.05)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(Machine.create(tmp_path / "machine", "l4x2"))
    yield node
    node.wait_until_it_answers()
    assert node.session.close()


def test_a_gpu_that_hangs_is_sick_until_it_answers(node: Node) -> None:
    node.hang("nvmlDeviceGetName", node.hung.uuid)
    seen = node.session.look()
    assert seen.gpus == (node.healthy,)
    (sick,) = seen.sick
    assert (sick.index, sick.is_silent) == (node.hung.index, True)
    assert f"GPU {sick.index} has not answered since 20" in sick.reason
    # It is not asked again: it would answer, and looks would take long, and threads be many.
    threads = threading.active_count()
    assert [node.session.look() for _ in range(5)] == [seen] * 5
    assert threading.active_count() <= threads
    assert node.session.silences()[str(sick.index)] > 0.5
    node.wait_until_it_answers()
    assert node.session.look().gpus == node.gpus
    assert set(node.session.silences().values()) == {0.0}


def test_compute_modes_of_other_gpus_are_answered_while_one_hangs(node: Node) -> None:
    node.hang("nvmlDeviceGetComputeMode", node.hung.uuid)
    with pytest.raises(SilenceError, match="has not answered since"):
        node.session.compute_mode(node.hung.uuid)
    node.session.set_compute_mode(node.healthy.uuid, 3)
    assert node.session.compute_mode(node.healthy.uuid) == 3
    # A look does not ask it either, although it would ask for other things.
    assert [sick.index for sick in node.session.look().sick] == [node.hung.index]


def test_callers_of_a_gpu_that_hangs_do_not_each_lose_a_thread(node: Node) -> None:
    node.hang("nvmlDeviceGetComputeMode", node.hung.uuid, times=100)
    before = threading.active_count()

    def ask() -> None:
        with pytest.raises(SilenceError):
            node.session.compute_mode(node.hung.uuid)

    callers = [threading.Thread(target=ask) for _ in range(20)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert threading.active_count() <= before + 1
    node.machine.clear_faults()


def test_a_library_in_which_a_call_hangs_stays_open(node: Node) -> None:
    node.hang("nvmlDeviceGetName", node.hung.uuid)
    node.session.look()
    assert not node.session.close()
    assert node.session.compute_mode(node.healthy.uuid) == 0


def test_a_driver_that_hangs_as_a_whole_is_an_error_in_time(node: Node) -> None:
    node.hang("nvmlDeviceGetCount_v2")
    with pytest.raises(SilenceError, match="the GPU driver has not answered since"):
        node.session.look()
    assert node.session.silences()[NVML] > 0
    node.wait_until_it_answers()
    assert node.session.look().gpus == node.gpus
