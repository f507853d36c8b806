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
    say(new, "set", "--gpu", "0", "--recovery-action", "gpu-reset")
    assert fields(RECOVERY) == [1]
    event = pynvml.nvmlEventSetWait_v2(events, 10_000)
    assert (event.eventType, event.eventData) == (kind, 0)
    gpu = uuid()
    pynvml.nvmlShutdown()
    new.reset_gpu(gpu)
    pynvml.nvmlInit()
    assert fields(RECOVERY) == [0]


def test_bad_memory_is_replaced_by_a_reset_unless_that_failed(new: Machine) -> None:
    assert fields(ROWS_PENDING, ROWS_FAILED) == [0, 0]
    say(new, "set", "--gpu", "0", "--rows", "pending")
    assert fields(ROWS_PENDING, ROWS_FAILED) == [1, 0]
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert list(pynvml.nvmlDeviceGetRemappedRows(handle)) == [0, 0, 1, 0]
    gpu = uuid()
    pynvml.nvmlShutdown()
    new.reset_gpu(gpu)
    pynvml.nvmlInit()
    assert fields(ROWS_PENDING, 143) == [0, 1]
    say(new, "set", "--gpu", "0", "--rows", "failed")
    new.reboot()
    assert fields(ROWS_PENDING, ROWS_FAILED) == [0, 1]
