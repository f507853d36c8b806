"""Processes on simulated GPUs, as the real pynvml is told of them."""

import time

import pynvml
import pytest

from dra_driver.simulator.layout import ProcessKind
from dra_driver.simulator.machine import Machine
from dra_driver.simulator.processes import UNKNOWN_PERCENT, Activity, let_do

MIB = 1 << 20
SUCCESS, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE = 0, 3, 6, 7


@pytest.fixture
def busy(session: Machine) -> Machine:
    """Two processes on GPU 0 that compute, one that draws, one by MPS."""
    gpu = session.find("0").uuid
    for pid, kind, sm in (
        (11, ProcessKind.COMPUTES, 40),
        (12, ProcessKind.COMPUTES, 0),
        (13, ProcessKind.DRAWS, 5),
        (14, ProcessKind.BY_MPS, 20),
    ):
        assert session.take_memory(gpu, pid * MIB, pid=pid)
        let_do(session, pid, Activity(kind=kind, sm=sm, memory_access=sm // 2))
    return session


def handle(index: int = 0) -> object:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def pids(name: str) -> list[tuple[int, int | None]]:
    return [(one.pid, one.usedGpuMemory) for one in getattr(pynvml, name)(handle())]


def test_each_process_is_in_the_list_of_its_kind(busy: Machine) -> None:
    by_mps = [(14, 14 * MIB)]  # in both lists
    assert pids("nvmlDeviceGetComputeRunningProcesses") == [(11, 11 * MIB), (12, 12 * MIB), *by_mps]
    assert pids("nvmlDeviceGetGraphicsRunningProcesses") == [(13, 13 * MIB)]
    assert pids("nvmlDeviceGetMPSComputeRunningProcesses") == by_mps
    (one, *_) = pynvml.nvmlDeviceGetComputeRunningProcesses(handle())
    assert (one.gpuInstanceId, one.computeInstanceId) == (0xFFFFFFFF, 0xFFFFFFFF)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle(), version=pynvml.nvmlMemory_v2)
    assert memory.used == (11 + 12 + 13 + 14) * MIB
    assert pynvml.nvmlDeviceGetUtilizationRates(handle()).gpu == 65


def test_who_is_idle_or_a_client_of_mps_has_no_sample_and_old_ones_come_back(busy: Machine) -> None:
    def samples(since: int) -> dict[int, int]:
        found = pynvml.nvmlDeviceGetProcessUtilization(handle(), since)
        return {one.pid: one.smUtil for one in found}

    second = 1_000_000
    now = int(time.time() * second)
    assert samples(now - 10 * second) == {11: 40, 13: 5}
    with pytest.raises(pynvml.NVMLError_NotFound):
        samples(now + 60 * second)
    let_do(busy, 11, Activity(sm=90, sampled_us=now - 60 * second))
    assert samples(now - 10 * second) == {11: 90, 13: 5}
    let_do(busy, 13, Activity(kind=ProcessKind.DRAWS, sm=UNKNOWN_PERCENT))
    assert samples(now - 10 * second)[13] == UNKNOWN_PERCENT
