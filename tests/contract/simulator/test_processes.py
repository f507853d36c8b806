"""Processes on simulated GPUs, as the real pynvml is told of them."""

import ctypes
import subprocess
import sys
import time

import pynvml
import pytest

from contract.simulator.conftest import MakeMachine, Nvml
from dra_driver.simulator.layout import ProcessKind
from dra_driver.simulator.machine import Machine
from dra_driver.simulator.processes import UNKNOWN_PERCENT, Activity, let_do
from dra_driver.simulator.profile import changed, load

MIB = 1 << 20
SUCCESS, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE = 0, 3, 6, 7
COMPUTE = "nvmlDeviceGetComputeRunningProcesses_v3"


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


def test_the_size_is_asked_for_first_and_may_be_too_small_a_moment_later(busy: Machine) -> None:
    list_processes = getattr(pynvml.nvmlLib, COMPUTE)
    count = ctypes.c_uint(0)
    assert list_processes(handle(), ctypes.byref(count), None) == INSUFFICIENT_SIZE
    assert count.value == 3
    busy.take_memory(busy.find("0").uuid, MIB, pid=99)
    room = (pynvml.c_nvmlProcessInfo_v3_t * 3)()
    assert list_processes(handle(), ctypes.byref(count), room) == INSUFFICIENT_SIZE
    assert [one.pid for one in room] == [11, 12, 14]
    assert count.value == 4
    assert list_processes(handle(1), ctypes.byref(ctypes.c_uint(0)), None) == SUCCESS


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


def test_newer_drivers_have_a_second_call_for_it(make_machine: MakeMachine, nvml: Nvml) -> None:
    machine = make_machine(changed(load("h100x8"), {"driver_version": "570.86.15"}))
    with nvml(machine):
        machine.take_memory(machine.find("0").uuid, MIB, pid=11)
        let_do(machine, 11, Activity(sm=40, memory_access=10, encoder=1, decoder=2))
        (one,) = pynvml.nvmlDeviceGetProcessesUtilizationInfo(handle(), 0)
        assert (one.pid, one.smUtil, one.memUtil, one.encUtil, one.decUtil) == (11, 40, 10, 1, 2)
        assert abs(one.timeStamp / 1e6 - time.time()) < 5
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetProcessesUtilizationInfo(handle(), int(2e6 * time.time()))


def test_in_mig_mode_processes_have_instances_and_nobody_is_sampled(
    make_machine: MakeMachine, nvml: Nvml
) -> None:
    machine = make_machine("h100x8")
    gpu = machine.find("0").uuid
    machine.set_mig_mode(gpu, enabled=True)
    first, second = (machine.create_mig(gpu, "1g.10gb") for _ in range(2))
    machine.hold_instance(first, pid=21, memory=MIB)
    machine.hold_instance(second, pid=22, memory=2 * MIB)
    let_do(machine, 21, Activity(sm=50))
    with nvml(machine):
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle())
        ids = {one.uuid: one.gpu_instance for one in machine.mig_devices(gpu)}
        on = [(one.pid, one.gpuInstanceId) for one in found]
        assert on == [(21, ids[first]), (22, ids[second])]
        mig = pynvml.nvmlDeviceGetHandleByUUID(second)
        (one,) = pynvml.nvmlDeviceGetComputeRunningProcesses(mig)
        assert (one.pid, one.usedGpuMemory) == (22, 2 * MIB)
        for device in (handle(), mig):
            with pytest.raises(pynvml.NVMLError_NotSupported):
                pynvml.nvmlDeviceGetProcessUtilization(device, 0)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetUtilizationRates(handle())


def test_a_container_with_pids_of_its_own_is_told_of_none(busy: Machine, needs_root: None) -> None:
    program = f"""
import ctypes, pynvml
pynvml.nvmlLib = ctypes.CDLL({str(busy.library)!r})
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
print(pynvml.nvmlDeviceGetComputeRunningProcesses(gpu),
      [one.pid for one in pynvml.nvmlDeviceGetProcessUtilization(gpu, 0)])
"""
    words = ["unshare", "--pid", "--fork", sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] [11, 13]"  # samples keep the host's PIDs
