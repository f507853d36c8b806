"""GPM as NVML's documentation has it: from Hopper on, two samples, 100 ms between them."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from contract.simulator.conftest import MakeMachine, Nvml
from dra_driver.simulator.machine import Machine
from dra_driver.simulator.processes import Activity, let_do
from worlds.mig_container import mig_container_dev

MIB = 1 << 20
INVALID_ARGUMENT, NOT_SUPPORTED, NO_DATA, VERSION_MISMATCH = 2, 3, 21, 25
SM, DRAM, OCCUPANCY = 2, 10, 3


@pytest.fixture
def h100(make_machine: MakeMachine, nvml: Nvml) -> Iterator[Machine]:
    machine = make_machine("h100x8")
    with nvml(machine):
        yield machine


def handle(index: int = 0) -> object:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def metrics(first: object, second: object, *numbers: int) -> Any:
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    asked.numMetrics = len(numbers)
    asked.sample1, asked.sample2 = first, second
    for metric, number in zip(asked.metrics, numbers, strict=False):
        metric.metricId = number
    return asked


def between(take: Callable[[object], object], *numbers: int) -> dict[int, tuple[int, float]]:
    """Code and value of each metric, of two samples that are far enough apart."""
    first, second = (pynvml.nvmlGpmSampleAlloc() for _ in range(2))
    take(first)
    time.sleep(0.11)
    take(second)
    asked = pynvml.nvmlGpmMetricsGet(metrics(first, second, *numbers))
    for sample in (first, second):
        pynvml.nvmlGpmSampleFree(sample)
    return {
        number: (metric.nvmlReturn, metric.value)
        for number, metric in zip(numbers, asked.metrics, strict=False)
    }


def refused(call: Callable[[], object]) -> int:
    with pytest.raises(pynvml.NVMLError) as caught:
        call()
    return int(caught.value.value)


def test_figures_are_those_of_the_processes(h100: Machine) -> None:
    gpu = h100.find("0").uuid
    for pid, sm, memory_access in ((11, 40, 10), (12, 30, 20)):
        assert h100.take_memory(gpu, MIB, pid=pid)
        let_do(h100, pid, Activity(sm=sm, memory_access=memory_access))
    assert pynvml.nvmlGpmQueryDeviceSupport(handle()).isSupportedDevice == 1
    found = between(lambda one: pynvml.nvmlGpmSampleGet(handle(), one), 1, SM, DRAM)
    assert found == {1: (0, 70.0), SM: (0, 70.0), DRAM: (0, 30.0)}
    found = between(lambda one: pynvml.nvmlGpmSampleGet(handle(1), one), SM, DRAM)
    assert found == {SM: (0, 0.0), DRAM: (0, 0.0)}


def test_a_metric_answers_for_itself_and_has_no_value_within_100_ms(h100: Machine) -> None:
    found = between(lambda one: pynvml.nvmlGpmSampleGet(handle(), one), OCCUPANCY, 0, SM, 9999)
    codes = {number: code for number, (code, _) in found.items()}
    assert codes == {OCCUPANCY: NOT_SUPPORTED, 0: INVALID_ARGUMENT, SM: 0, 9999: INVALID_ARGUMENT}
    samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]
    for sample in samples:
        pynvml.nvmlGpmSampleGet(handle(), sample)
    same = metrics(samples[1], samples[1], SM)
    assert pynvml.nvmlGpmMetricsGet(same).metrics[0].nvmlReturn == NO_DATA


def test_a_gpu_in_mig_mode_is_asked_for_its_instances_by_their_ids(
    make_machine: MakeMachine, nvml: Nvml
) -> None:
    machine = make_machine("h100x8")
    gpu = machine.find("0").uuid
    machine.set_mig_mode(gpu, enabled=True)
    busy, idle = (machine.create_mig(gpu, "1g.10gb") for _ in range(2))
    machine.hold_instance(busy, pid=21, memory=MIB)
    let_do(machine, 21, Activity(sm=50, memory_access=5))
    ids = {device.uuid: device.gpu_instance for device in machine.mig_devices(gpu)}
    with nvml(machine):
        for uuid, value in ((busy, 50.0), (idle, 0.0)):
            found = between(
                lambda one, uuid=uuid: pynvml.nvmlGpmMigSampleGet(handle(), ids[uuid], one), SM
            )
            assert found == {SM: (0, value)}
        sample = pynvml.nvmlGpmSampleAlloc()
        mig = pynvml.nvmlDeviceGetHandleByUUID(busy)
        for call in (
            lambda: pynvml.nvmlGpmSampleGet(handle(), sample),
            lambda: pynvml.nvmlGpmSampleGet(mig, sample),
            lambda: pynvml.nvmlGpmMigSampleGet(mig, ids[busy], sample),
            lambda: pynvml.nvmlGpmMigSampleGet(handle(1), 0, sample),
            lambda: pynvml.nvmlGpmQueryDeviceSupport(mig),
        ):
            assert refused(call) == NOT_SUPPORTED
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlGpmMigSampleGet(handle(), 14, sample)


def test_a_container_sees_its_own_instance_alone_and_not_what_all_have_together(
    make_machine: MakeMachine, nvml: Nvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = make_machine("h100x8")
    gpu = machine.find("0")
    machine.set_mig_mode(gpu.uuid, enabled=True)
    for _ in range(2):
        machine.create_mig(gpu.uuid, "1g.10gb")
    mine, other = (device.gpu_instance for device in machine.mig_devices(gpu.uuid))
    dev = mig_container_dev(tmp_path, gpu.minor, mine)
    monkeypatch.setenv("NVML_SIMULATOR_DEV", str(dev))
    with nvml(machine):
        sample = pynvml.nvmlGpmSampleAlloc()
        pynvml.nvmlGpmMigSampleGet(handle(), mine, sample)
        mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(), 0)
        assert pynvml.nvmlDeviceGetMemoryInfo(mig).total > 0
        for call in (
            lambda: pynvml.nvmlGpmMigSampleGet(handle(), other, sample),
            lambda: pynvml.nvmlDeviceGetMemoryInfo(handle()),
            lambda: pynvml.nvmlDeviceGetMemoryInfo(handle(), version=pynvml.nvmlMemory_v2),
        ):
            with pytest.raises(pynvml.NVMLError_NoPermission):
                call()
        (dev / "nvidia-caps" / "nvidia-cap2").touch()
        pynvml.nvmlGpmMigSampleGet(handle(), other, sample)
        assert pynvml.nvmlDeviceGetMemoryInfo(handle()).total > 0
