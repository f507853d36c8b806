"""What simulated cards report of how they are, as NVML documents it, and what heals them."""

from collections.abc import Iterator

import pynvml
import pytest

from contract.simulator.conftest import MakeMachine, Nvml
from dra_driver.cli import main
from dra_driver.simulator import profile as profiles
from dra_driver.simulator.machine import Machine

RECOVERY, UNCORRECTED, EVER = 230, 4, 6
ROWS_PENDING, ROWS_FAILED = 144, 145


@pytest.fixture
def new(make_machine: MakeMachine, nvml: Nvml) -> Iterator[Machine]:
    """H100 with a driver that knows of recovery actions."""
    machine = make_machine(profiles.changed(profiles.load("h100x8"), {"driver_version": "580.9.1"}))
    with nvml(machine):
        yield machine


def say(machine: Machine, *words: str) -> None:
    assert main(["simulate", *words, "--root", str(machine.driver_root)]) == 0


def fields(*ids: int) -> list[int | None]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    values = pynvml.nvmlDeviceGetFieldValues(handle, list(ids))
    return [None if value.nvmlReturn else value.value.uiVal for value in values]


def uuid() -> str:
    return str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0)))


def test_a_recovery_action_is_told_with_an_event_and_ended_by_a_reset(new: Machine) -> None:
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    events = pynvml.nvmlEventSetCreate()
    kind = pynvml.nvmlEventTypeGpuRecoveryAction
    assert pynvml.nvmlDeviceGetSupportedEventTypes(handle) & kind
    pynvml.nvmlDeviceRegisterEvents(handle, kind, events)
    assert fields(RECOVERY) == [0]
    say(new, "health", "--gpu", "0", "--recovery-action", "gpu-reset")
    assert fields(RECOVERY) == [1]
    event = pynvml.nvmlEventSetWait_v2(events, 10_000)
    assert (event.eventType, event.eventData) == (kind, 0)
    gpu = uuid()
    pynvml.nvmlShutdown()
    new.reset_gpu(gpu)
    pynvml.nvmlInit()
    assert fields(RECOVERY) == [0]


def test_what_needs_a_reboot_is_not_ended_by_a_reset(new: Machine) -> None:
    say(new, "health", "--gpu", "0", "--recovery-action", "node-reboot")
    gpu = uuid()
    pynvml.nvmlShutdown()
    new.reset_gpu(gpu)
    pynvml.nvmlInit()
    assert fields(RECOVERY) == [2]
    new.reboot()
    assert fields(RECOVERY) == [0]


def test_bad_memory_is_replaced_by_a_reset_unless_that_failed(new: Machine) -> None:
    assert fields(ROWS_PENDING, ROWS_FAILED) == [0, 0]
    say(new, "health", "--gpu", "0", "--rows", "pending")
    assert fields(ROWS_PENDING, ROWS_FAILED) == [1, 0]
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert list(pynvml.nvmlDeviceGetRemappedRows(handle)) == [0, 0, 1, 0]
    gpu = uuid()
    pynvml.nvmlShutdown()
    new.reset_gpu(gpu)
    pynvml.nvmlInit()
    assert fields(ROWS_PENDING, 143) == [0, 1]
    say(new, "health", "--gpu", "0", "--rows", "failed")
    new.reboot()
    assert fields(ROWS_PENDING, ROWS_FAILED) == [0, 1]


def test_a_gpu_with_instances_does_not_tell_of_its_rows(new: Machine) -> None:
    gpu = uuid()
    pynvml.nvmlShutdown()
    new.set_mig_mode(gpu, enabled=True)
    new.create_mig(gpu, "1g.10gb")
    pynvml.nvmlInit()
    assert fields(ROWS_PENDING, ROWS_FAILED, RECOVERY) == [None, None, 0]
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetRemappedRows(pynvml.nvmlDeviceGetHandleByIndex(0))


def test_errors_since_the_driver_was_loaded_begin_anew_and_those_ever_do_not(new: Machine) -> None:
    say(new, "health", "--gpu", "0", "--uncorrected", "3")
    assert fields(UNCORRECTED, EVER) == [3, 3]
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    counts = [
        pynvml.nvmlDeviceGetTotalEccErrors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, one)
        for one in (pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC)
    ]
    assert counts == [3, 3]
    new.reboot()
    assert fields(UNCORRECTED, EVER) == [0, 3]


@pytest.mark.parametrize(("slowdown", "bits"), [("thermal", 0x48), ("power-brake", 0x88)])
def test_a_slowdown_is_told_with_the_bit_that_says_that_it_is_the_hardwares(
    new: Machine, slowdown: str, bits: int
) -> None:
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) == 0x1
    say(new, "health", "--gpu", "0", "--slowdown", slowdown)
    assert pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) == bits
    say(new, "health", "--gpu", "0", "--slowdown", "none")
    assert pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) == 0x1


def test_an_nvlink_goes_down_and_a_reboot_brings_it_up(new: Machine) -> None:
    def is_up() -> list[int]:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return [pynvml.nvmlDeviceGetNvLinkState(handle, link) for link in (6, 7)]

    say(new, "nvlink", "--gpu", "0", "--link", "7", "--state", "down")
    assert is_up() == [1, 0]
    new.reboot()
    assert is_up() == [1, 1]


def test_an_event_names_the_mig_device_that_it_is_about(new: Machine) -> None:
    gpu = uuid()
    pynvml.nvmlShutdown()
    new.set_mig_mode(gpu, enabled=True)
    new.create_mig(gpu, "1g.10gb")
    device = new.create_mig(gpu, "2g.20gb")
    pynvml.nvmlInit()
    events = pynvml.nvmlEventSetCreate()
    xid = pynvml.nvmlEventTypeXidCriticalError
    pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByIndex(0), xid, events)
    say(new, "event", "--device", device, "--xid", "62")
    event = pynvml.nvmlEventSetWait_v2(events, 10_000)
    (mine,) = [one for one in new.mig_devices(gpu) if one.uuid == device]
    assert (event.gpuInstanceId, event.computeInstanceId) == (
        mine.gpu_instance,
        mine.compute_instance,
    )
    assert pynvml.nvmlDeviceGetUUID(event.device) == gpu
