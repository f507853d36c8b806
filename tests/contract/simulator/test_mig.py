"""MIG in the simulated NVML as the real pynvml sees it."""

import uuid
from collections.abc import Callable, Iterator

import pynvml
import pytest

import mig_calls
from contract.simulator.conftest import MakeMachine, Nvml
from dra_driver.errors import SetupError
from dra_driver.simulator.layout import Fact
from dra_driver.simulator.machine import Machine

ONE, ONE_MEDIA, TWO, THREE, FOUR, WHOLE = 19, 20, 14, 9, 5, 0


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


def test_switching_resets_what_was_set(hopper: Machine) -> None:
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    gpu = pynvml.nvmlDeviceGetUUID(handle)
    pynvml.nvmlDeviceSetComputeMode(handle, 3)
    pynvml.nvmlDeviceSetMigMode(handle, 1)
    assert hopper.compute_mode(gpu) == 0
    assert code_of(pynvml.nvmlDeviceSetComputeMode, handle, 3) == 3
    assert code_of(pynvml.nvmlDeviceGetUtilizationRates, handle) == 3


@pytest.mark.parametrize(
    ("name", "units", "whole"),
    [
        ("a100x8", 8, "7g.40gb"),
        ("a100-80x8", 8, "7g.80gb"),
        ("a30x4", 4, "4g.24gb"),
        ("h100x8", 8, "7g.80gb"),
        ("h200x8", 8, "7g.141gb"),
        ("b200x8", 8, "7g.180gb"),
        ("rtxpro6000x8", 12, "4g.96gb"),
    ],
)
def test_profiles_and_placements_are_answered_with_mig_off(
    name: str, units: int, whole: str, make_machine: MakeMachine, nvml: Nvml
) -> None:
    machine = make_machine(name)
    card = machine.gpus[0].card
    assert card.mig is not None
    with nvml(machine):
        handle = pynvml.nvmlDeviceGetHandleByUUID(machine.gpus[0].uuid)
        found = dict(mig_calls.profiles(handle))
        assert sorted(found) == sorted(profile.index for profile in card.mig.profiles)
        for profile in card.mig.profiles:
            info = found[profile.index]
            assert (info.id, info.name) == (profile.id, f"MIG {profile.name}")
            assert info.memorySizeMB == profile.memory_mib
            assert info.multiprocessorCount == profile.multiprocessors
            assert (info.jpegCount, info.ofaCount) == (profile.jpeg_engines, profile.ofa_engines)
            assert mig_calls.placements(handle, profile.id) == [
                (start, profile.size) for start in profile.starts
            ]
        assert max(
            s + n for p in found.values() for s, n in mig_calls.placements(handle, p.id)
        ) == (units)
        assert (
            found[card.mig.profiles[[p.name for p in card.mig.profiles].index(whole)].index].id == 0
        )


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


def test_an_instance_made_again_in_its_place_is_the_same_device(hopper: Machine) -> None:
    gpu = hopper.gpus[1].uuid
    hopper.set_mig_mode(gpu, enabled=True)
    first = hopper.create_mig(gpu, "1g.10gb", 3)
    other = hopper.create_mig(gpu, "1g.10gb", 4)
    hopper.destroy_mig(first)
    assert hopper.create_mig(gpu, "1g.10gb", 3) == first
    assert other != first


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


def test_gpus_that_are_in_mig_mode_from_boot_on_are_so_after_each_boot(
    make_machine: MakeMachine, nvml: Nvml
) -> None:
    machine = make_machine("h100x8-mig")
    gpu = machine.gpus[7].uuid
    for _ in range(2):
        assert [one.mig_mode for one in machine.status()] == [0] * 4 + [1] * 4
        with nvml(machine):
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu)
            assert pynvml.nvmlDeviceGetMigMode(handle) == [1, 1]
        machine.create_mig(gpu, "1g.10gb")
        machine.set_mig_mode(machine.gpus[6].uuid, enabled=False)
        machine.set_mig_mode(machine.gpus[0].uuid, enabled=True)
        machine.reboot()
        assert machine.mig_devices(gpu) == []


def test_a_change_of_instances_is_an_event(hopper: Machine, device: object) -> None:
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(device, pynvml.nvmlEventMigConfigChange, events)
    instance = mig_calls.create(device, ONE, 0, 1)
    data = pynvml.nvmlEventSetWait_v2(events, 1000)
    assert (data.eventType, data.gpuInstanceId) == (pynvml.nvmlEventMigConfigChange, 11)
    pynvml.nvmlGpuInstanceDestroy(instance)
    assert pynvml.nvmlEventSetWait_v2(events, 1000).eventType == pynvml.nvmlEventMigConfigChange


def test_what_cannot_be_done_by_hand_says_why(hopper: Machine) -> None:
    with pytest.raises(SetupError, match="its MIG mode is off"):
        hopper.create_mig(hopper.gpus[0].uuid, "1g.10gb")
    hopper.set_mig_mode(hopper.gpus[0].uuid, enabled=True)
    with pytest.raises(SetupError, match=r"has no MIG profile '9g'; it has 1g.10gb \(19\)"):
        hopper.create_mig(hopper.gpus[0].uuid, "9g")
    with pytest.raises(SetupError, match="cannot be placed there"):
        hopper.create_mig(hopper.gpus[0].uuid, "2g.20gb", 1)
    hopper.create_mig(hopper.gpus[0].uuid, "7g.80gb")
    with pytest.raises(SetupError, match="are taken"):
        hopper.create_mig(hopper.gpus[0].uuid, "1g.10gb")
    with pytest.raises(SetupError, match="no MIG device is 'MIG-x'"):
        hopper.destroy_mig("MIG-x")
    with pytest.raises(SetupError, match="instances or processes are on the GPU"):
        hopper.set_mig_mode(hopper.gpus[0].uuid, enabled=False)
    hopper.set_fact(hopper.gpus[1].uuid, Fact.MIG_CURRENT, None)
    with pytest.raises(SetupError, match="or it has none"):
        hopper.set_mig_mode(hopper.gpus[1].uuid, enabled=True)
