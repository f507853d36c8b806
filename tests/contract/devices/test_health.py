"""What the driver's session hears of how simulated GPUs are, through the real pynvml."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

import make
from dra_driver.devices.model import Fabric, GpuEvent, InstanceId, Vitals
from dra_driver.devices.nvml.calls import NvmlCalls
from dra_driver.devices.session import DriverSession
from dra_driver.errors import LostError, TransientError
from dra_driver.simulator import profile as profiles
from dra_driver.simulator.change_cli import Set, report
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.layout import Fact
from dra_driver.simulator.machine import Machine
from worlds.session import session_on

WELL = make.vitals(slowdown=1)


def machine_of(folder: Path, profile: str, version: str = "580.9.1") -> Machine:
    changed = profiles.changed(profiles.load(profile), {"driver_version": version})
    return Machine.create(folder / "machine", changed, Options(userspace="stand-in"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return machine_of(tmp_path, "h100x8")


@pytest.fixture
def session(machine: Machine) -> Iterator[DriverSession]:
    session = session_on(machine)
    session.look()
    assert session.next_event(0.0) is None  # registers
    yield session
    session.close()


def vitals(session: DriverSession, index: int = 0) -> Vitals:
    return next(gpu.vitals for gpu in session.look().gpus if gpu.index == index)


def test_each_scan_reads_the_health_of_gpus(machine: Machine, session: DriverSession) -> None:
    first = session.look()
    assert [gpu.vitals for gpu in first.gpus] == [WELL] * 8
    uuid = first.gpus[0].uuid
    bad = Set(
        gpu="0",
        recovery_action="node-reboot",
        rows="pending",
        uncorrected=2,
        slowdown="thermal",
        fabric="in-progress",
    )
    report(machine, uuid, bad)
    second = session.look()
    # The machine is the same, but for what the GPU can reach over NVLink.
    same = [[replace(gpu, fabric=None) for gpu in one.gpus] for one in (first, second)]
    assert same[0] == same[1]
    assert [gpu.vitals for gpu in second.gpus[1:]] == [WELL] * 7
    assert second.gpus[0].vitals == Vitals(
        recovery_action=2,
        rows_pending=True,
        rows_failed=False,
        uncorrected=2,
        slowdown=0x48,
        fabric=Fabric(state=2, status=0),
    )


def test_an_old_card_and_driver_report_what_they_can(tmp_path: Path) -> None:
    session = session_on(machine_of(tmp_path, "generations", "535.1.1"))
    found = {gpu.architecture: gpu.vitals for gpu in session.look().gpus}
    session.close()
    assert found["Volta"] == Vitals(
        rows_pending=False, rows_failed=False, uncorrected=0, slowdown=1
    )
    assert {one.recovery_action for one in found.values()} == {None}
    assert {one.fabric for one in found.values()} == {None}


def test_pages_that_wait_for_retirement_are_memory_that_waits_for_a_reset(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, "v100x8")
    session = session_on(machine)
    report(machine, session.look().gpus[0].uuid, Set(gpu="0", rows="pending"))
    assert vitals(session).rows_pending
    session.close()


def test_a_card_in_mig_mode_reports_no_rows(machine: Machine, session: DriverSession) -> None:
    uuid = session.look().gpus[0].uuid
    session.close()
    machine.set_mig_mode(uuid, enabled=True)
    machine.create_mig(uuid, "1g.10gb")
    found = vitals(session)
    assert (found.rows_pending, found.rows_failed, found.recovery_action) == (None, None, 0)


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlDeviceGetGpuFabricInfoV",
    ],
)
def test_a_query_that_nvml_refuses_makes_no_gpu_sick(
    machine: Machine, session: DriverSession, function: str
) -> None:
    machine.fail_call(function, 999)
    seen = session.look()
    assert (len(seen.gpus), seen.sick) == (8, ())
    assert seen.gpus[0].vitals != WELL


def test_an_event_of_another_kind_causes_a_scan(machine: Machine, session: DriverSession) -> None:
    uuid = session.look().gpus[0].uuid
    report(machine, uuid, Set(gpu="0", recovery_action="gpu-reset"))
    assert session.next_event(5.0) == GpuEvent(gpu=uuid)


def test_an_event_of_a_mig_device_has_its_instance(
    machine: Machine, session: DriverSession
) -> None:
    uuid = session.look().gpus[0].uuid
    session.close()
    machine.set_mig_mode(uuid, enabled=True)
    device = machine.create_mig(uuid, "2g.20gb")
    session.look()
    assert session.next_event(0.0) is None
    machine.emit_xid(device, 62)
    (mine,) = machine.mig_devices(uuid)
    instance = InstanceId(gpu_instance=mine.gpu_instance, compute_instance=mine.compute_instance)
    assert session.next_event(5.0) == GpuEvent(gpu=uuid, xid=62, instance=instance)


def test_a_loss_is_reported_once_without_its_gpu(machine: Machine, session: DriverSession) -> None:
    machine.lose_gpu(session.look().gpus[2].uuid)
    with pytest.raises(LostError):
        session.next_event(5.0)
    assert session.next_event(0.0) is None


def test_a_card_that_reports_no_xids_hides_no_other(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, "l4x2")
    machine.set_fact(machine.gpus[0].uuid, Fact.EVENT_TYPES, None)
    session = session_on(machine)
    gpus = session.look().gpus
    assert session.next_event(0.0) is None
    machine.emit_xid(gpus[1].uuid, 79)
    assert session.next_event(5.0) == GpuEvent(gpu=gpus[1].uuid, xid=79)
    session.close()


def test_a_card_that_hangs_while_it_is_registered_hides_no_other(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, "l4x2")
    calls = NvmlCalls(clock=time.monotonic, answer_seconds=2.0)
    session = session_on(machine, calls=calls)
    gpus = session.look().gpus
    machine.slow_call("nvmlDeviceRegisterEvents", 600_000, uuid=gpus[0].uuid, times=1)
    assert session.next_event(0.0) is None
    machine.emit_xid(gpus[1].uuid, 79)
    assert session.next_event(5.0) == GpuEvent(gpu=gpus[1].uuid, xid=79)
    machine.clear_faults()
    while calls.silent:
        time.sleep(0.05)
    assert session.close()


def test_events_of_gpus_found_later_arrive_at_once(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, "l4x2")
    session = session_on(machine)
    machine.slow_call("nvmlDeviceGetUUID", 2000, uuid=machine.gpus[1].uuid, times=1)
    look = threading.Thread(target=session.look)
    look.start()
    while look.is_alive():  # by then the first is known, and registered
        with contextlib.suppress(TransientError):
            session.next_event(0.0)
        time.sleep(0.02)
    assert session.next_event(0.0) is None
    machine.emit_xid(machine.gpus[1].uuid, 79)
    assert session.next_event(5.0) == GpuEvent(gpu=machine.gpus[1].uuid, xid=79)
    session.close()


def test_nvml_is_never_opened_to_wait_for_events(machine: Machine) -> None:
    session = session_on(machine)
    with pytest.raises(TransientError, match="not open"):
        session.next_event(0.0)


def test_waiting_goes_on_while_nvml_is_closed_and_opened_again_and_again(
    machine: Machine, session: DriverSession
) -> None:
    heard: list[GpuEvent] = []
    stop = threading.Event()

    def listen() -> None:
        while not stop.is_set():
            try:
                event = session.next_event(0.2)
            except TransientError:
                stop.wait(0.01)
            else:
                heard.extend([event] if event else [])

    listener = threading.Thread(target=listen)
    listener.start()
    uuid = session.look().gpus[0].uuid
    try:
        for number in range(5):
            assert session.close()
            session.look()
            end = time.monotonic() + 10
            while len(heard) <= number and time.monotonic() < end:
                machine.emit_xid(uuid, 62)  # those before the registration are not heard
                time.sleep(0.05)
            assert len(heard) > number
            assert set(heard) == {GpuEvent(gpu=uuid, xid=62)}
            heard[:] = heard[: number + 1]
    finally:
        stop.set()
        listener.join(10)
    assert not listener.is_alive()
