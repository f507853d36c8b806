"""MIG in the simulated NVML as the real pynvml sees it."""

import uuid
from collections.abc import Callable, Iterator

import pynvml
import pytest

import mig_calls
from contract.simulator.conftest import MakeMachine, Nvml
from dra_driver.simulator.machine import Machine

THREE = 9


@pytest.fixture
def hopper(make_machine: MakeMachine, nvml: Nvml) -> Iterator[Machine]:
    """Eight H100, with pynvml initialised."""
    machine = make_machine("h100x8")
    with nvml(machine):
        yield machine


@pytest.fixture
def device(hopper: Machine) -> object:
    """An H100 in MIG mode."""
    handle = pynvml.nvmlDeviceGetHandleByUUID(hopper.gpus[2].uuid)
    assert pynvml.nvmlDeviceSetMigMode(handle, 1) == pynvml.NVML_SUCCESS
    return handle


def code_of(call: Callable[..., object], *arguments: object) -> int:
    with pytest.raises(pynvml.NVMLError) as raised:
        call(*arguments)
    return int(raised.value.value)


def test_a_mig_device_is_known_by_its_uuid_index_and_name(device: object) -> None:
    _, compute = mig_calls.create_both(device, THREE, 4, 4)
    info = pynvml.nvmlComputeInstanceGetInfo_v2(compute)
    # Its facts name the parent, and no MIG device.
    assert pynvml.nvmlDeviceGetUUID(info.device) == pynvml.nvmlDeviceGetUUID(device)
    assert pynvml.nvmlDeviceIsMigDeviceHandle(info.device).value == 0
    (mig,) = mig_calls.mig_devices(device).values()
    assert pynvml.nvmlDeviceIsMigDeviceHandle(mig).value == 1
    assert pynvml.nvmlDeviceIsMigDeviceHandle(device).value == 0
    identity = pynvml.nvmlDeviceGetUUID(mig)
    assert uuid.UUID(identity.removeprefix("MIG-")).version == 5
    same = pynvml.nvmlDeviceGetHandleByUUID(identity)
    assert pynvml.nvmlDeviceGetUUID(same) == identity
    assert pynvml.nvmlDeviceGetIndex(same) == 0
    assert pynvml.nvmlDeviceGetIndex(info.device) == pynvml.nvmlDeviceGetIndex(device) == 2
    assert pynvml.nvmlDeviceGetName(same) == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    assert pynvml.nvmlDeviceGetGpuInstanceId(same) == 1
    assert pynvml.nvmlDeviceGetComputeInstanceId(same) == 0
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(same)
    assert pynvml.nvmlDeviceGetUUID(parent) == pynvml.nvmlDeviceGetUUID(device)
    attributes = pynvml.nvmlDeviceGetAttributes(same)
    assert (attributes.multiprocessorCount, attributes.memorySizeMB) == (60, 40448)
    assert (attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount) == (3, 3)
    assert pynvml.nvmlDeviceGetMemoryInfo(same).total == 40448 << 20
    assert code_of(pynvml.nvmlDeviceGetMinorNumber, same) == 3
    assert code_of(pynvml.nvmlDeviceGetAttributes, device) == 3
    assert code_of(pynvml.nvmlDeviceGetGpuInstanceId, device) == 2
    assert code_of(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, device, 7) == 2


def test_a_reboot_ends_instances_and_only_ampere_keeps_its_mode(make_machine: MakeMachine) -> None:
    for name, kept in (("a100x8", 1), ("h100x8", 0), ("b200x8", 0)):
        machine = make_machine(name, name=name)
        gpu = machine.gpus[0].uuid
        machine.set_mig_mode(gpu, enabled=True)
        machine.reset_gpu(gpu)
        machine.create_mig(gpu, 19)
        machine.reboot()
        assert machine.mig_devices(gpu) == []
        assert machine.status()[0].mig_mode == kept
        machine.set_mig_mode(gpu, enabled=True)
        machine.create_mig(gpu, 19)
        machine.unload_driver()
        machine.load_driver()
        assert machine.mig_devices(gpu) == []
        assert machine.status()[0].mig_mode == kept
