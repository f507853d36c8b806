"""The simulated NVML as the real pynvml sees it."""

import ctypes
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pynvml
import pytest

from contract.simulator.conftest import MakeMachine, Nvml
from dra_driver.simulator.layout import Fact
from dra_driver.simulator.machine import Machine


def handles() -> list[object]:
    return [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]


def uuids() -> list[str]:
    return [pynvml.nvmlDeviceGetUUID(handle) for handle in handles()]


def restarted() -> None:
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()


def test_a_gpu_is_found_by_uuid_serial_and_every_form_of_its_address(session: Machine) -> None:
    gpu = session.gpus[3]
    for handle in (
        pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid),
        pynvml.nvmlDeviceGetHandleBySerial(gpu.serial),
        pynvml.nvmlDeviceGetHandleByPciBusId(gpu.nvml_bus_id),
        pynvml.nvmlDeviceGetHandleByPciBusId(gpu.pci),
        pynvml.nvmlDeviceGetHandleByPciBusId(gpu.pci[5:]),
    ):
        assert pynvml.nvmlDeviceGetMinorNumber(handle) == gpu.minor


@pytest.mark.parametrize(
    ("lookup", "argument", "error"),
    [
        (pynvml.nvmlDeviceGetHandleByIndex, 8, pynvml.NVML_ERROR_INVALID_ARGUMENT),
        (pynvml.nvmlDeviceGetHandleByUUID, "GPU-none", pynvml.NVML_ERROR_NOT_FOUND),
        (pynvml.nvmlDeviceGetHandleByUUID, "MIG-none", pynvml.NVML_ERROR_NOT_FOUND),
        (pynvml.nvmlDeviceGetHandleByPciBusId, "0000:ff:00.0", pynvml.NVML_ERROR_NOT_FOUND),
        (pynvml.nvmlDeviceGetHandleByPciBusId, "nonsense", pynvml.NVML_ERROR_INVALID_ARGUMENT),
    ],
)
def test_a_lookup_that_finds_nothing_says_why(
    session: Machine, lookup: Callable[[object], object], argument: object, error: int
) -> None:
    with pytest.raises(pynvml.NVMLError) as raised:
        lookup(argument)
    assert raised.value.value == error


def test_nothing_works_before_init_and_after_the_last_shutdown(session: Machine) -> None:
    handle = handles()[0]
    pynvml.nvmlInit()  # counted: one of two shutdowns leaves it usable
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetCount() == 8
    pynvml.nvmlShutdown()
    for call in (
        pynvml.nvmlDeviceGetCount,
        pynvml.nvmlShutdown,
        lambda: pynvml.nvmlDeviceGetHandleByIndex(99),
        lambda: pynvml.nvmlDeviceGetName(handle),
    ):
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            call()


def test_fabric_and_links_of_an_nvswitch_machine(make_machine: MakeMachine, nvml: Nvml) -> None:
    with nvml(make_machine("h100x8")):
        handle = handles()[0]
        info = pynvml.c_nvmlGpuFabricInfo_v2_t()
        pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
        assert (info.state, info.status, info.cliqueId) == (3, 0, 0)
        states = [pynvml.nvmlDeviceGetNvLinkState(handle, link) for link in range(18)]
        assert states == [1] * 18
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetNvLinkState(handle, 18)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetNvLinkState(handle, 99)
        assert pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, 0).busId == "00000000:07:00.0"
        assert pynvml.nvmlDeviceGetModuleId(handle) == 2


def test_a_card_without_a_feature_says_not_supported(make_machine: MakeMachine, nvml: Nvml) -> None:
    with nvml(make_machine("mixed")):
        tesla = handles()[-1]
        assert pynvml.nvmlDeviceGetName(tesla) == "Tesla P4"
        for call in (
            pynvml.nvmlDeviceGetMigMode,
            pynvml.nvmlDeviceGetModuleId,
            pynvml.nvmlDeviceGetRemappedRows,
            lambda handle: pynvml.nvmlDeviceGetNvLinkState(handle, 0),
        ):
            with pytest.raises(pynvml.NVMLError_NotSupported):
                call(tesla)
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(tesla) == 0


def test_numbered_fields_answer_each_for_itself(session: Machine) -> None:
    handle = handles()[0]
    recovery, power, unknown = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 186, 9999
    values = pynvml.nvmlDeviceGetFieldValues(handle, [recovery, (power, 0), (power, 1), unknown])
    assert [value.nvmlReturn for value in values] == [3, 0, 3, 3]  # known as of R565
    assert values[1].value.uiVal == 52_000
    session.set_fact(pynvml.nvmlDeviceGetUUID(handle), Fact.RECOVERY_ACTION, 2)
    assert pynvml.nvmlDeviceGetFieldValues(handle, [recovery])[0].value.uiVal == 2


def test_two_processes_share_what_is_set(session: Machine) -> None:
    handle = handles()[2]
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    program = (
        "import ctypes, pynvml, sys\n"
        "pynvml.nvmlLib = ctypes.CDLL(sys.argv[1]); pynvml.nvmlInit()\n"
        "handle = pynvml.nvmlDeviceGetHandleByUUID(sys.argv[2])\n"
        "print(pynvml.nvmlDeviceGetComputeMode(handle))\n"
        "pynvml.nvmlDeviceSetComputeMode(handle, 0)\n"
    )
    pynvml.nvmlDeviceSetComputeMode(handle, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    done = subprocess.run(
        [sys.executable, "-c", program, str(session.library), uuid],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "3"
    assert session.compute_mode(uuid) == 0
    assert pynvml.nvmlDeviceGetComputeMode(handle) == 0


def test_a_lost_gpu_answers_lost_and_the_others_go_on(session: Machine) -> None:
    handle = handles()[1]
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    session.lose_gpu(uuid)
    for call in (
        lambda: pynvml.nvmlDeviceGetName(handle),
        lambda: pynvml.nvmlDeviceGetHandleByIndex(1),
        lambda: pynvml.nvmlDeviceGetHandleByUUID(uuid),
    ):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            call()
    assert pynvml.nvmlDeviceGetCount() == 8
    assert pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
    session.restore_gpu(uuid)
    assert pynvml.nvmlDeviceGetUUID(handle) == uuid


def test_a_failing_call_fails_as_often_as_asked_on_that_gpu_only(session: Machine) -> None:
    first, second = handles()[:2]
    session.fail_call(
        "nvmlDeviceGetMemoryInfo_v2",
        pynvml.NVML_ERROR_UNKNOWN,
        uuid=pynvml.nvmlDeviceGetUUID(first),
        times=2,
    )
    version = pynvml.nvmlMemory_v2
    assert pynvml.nvmlDeviceGetMemoryInfo(second, version=version)
    for _ in range(2):
        with pytest.raises(pynvml.NVMLError_Unknown):
            pynvml.nvmlDeviceGetMemoryInfo(first, version=version)
    assert pynvml.nvmlDeviceGetMemoryInfo(first, version=version)
    assert session.faults() == []


def test_a_hidden_function_looks_missing_to_the_binding(session: Machine) -> None:
    session.hide_function("nvmlDeviceGetModuleId")
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlDeviceGetModuleId(handles()[0])


def test_a_slow_call_under_way_ends_when_the_fault_is_cleared(session: Machine) -> None:
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    session.slow_call("nvmlDeviceGetName", 3_600_000)
    with ThreadPoolExecutor() as pool:
        name = pool.submit(pynvml.nvmlDeviceGetName, handle)
        with pytest.raises(TimeoutError):
            name.result(0.2)
        session.clear_faults()
        assert name.result(30)


def test_an_unloaded_driver_refuses_new_sessions(session: Machine) -> None:
    session.unload_driver()
    pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
        pynvml.nvmlInit()
    session.load_driver()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 8


def test_a_failing_init_leaves_the_library_uninitialised(session: Machine) -> None:
    pynvml.nvmlShutdown()
    session.fail_call("nvmlInitWithFlags", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, times=1)
    with pytest.raises(pynvml.NVMLError_LibRmVersionMismatch):
        pynvml.nvmlInit()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    pynvml.nvmlInit()


def test_a_pulled_gpu_is_lost_now_and_gone_after_the_next_init(session: Machine) -> None:
    before = uuids()
    handle = handles()[4]
    session.remove_gpu(before[4])
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetName(handle)
    assert pynvml.nvmlDeviceGetCount() == 8
    restarted()
    assert uuids() == [uuid for uuid in before if uuid != before[4]]
    session.add_gpu(before[4])
    restarted()
    assert uuids() == before


def test_without_nvidiactl_there_is_no_driver(
    session: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev = session.dev_root / "dev"
    (dev / "nvidiactl").unlink()
    monkeypatch.setenv("NVML_SIMULATOR_DEV", str(dev))  # not /dev, which may have one
    pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
        pynvml.nvmlInit()


def test_the_visible_gpus_are_those_with_device_nodes(
    session: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dev = tmp_path / "container-dev"
    dev.mkdir()
    for name in ("nvidiactl", "nvidia6", "nvidia1", "nvidia9"):
        (dev / name).touch()
    monkeypatch.setenv("NVML_SIMULATOR_DEV", str(dev))
    restarted()
    by_minor = {gpu.minor: gpu.uuid for gpu in session.gpus}
    # PCI order: minor 1 lies at 4e, minor 6 at 87.
    assert uuids() == [by_minor[1], by_minor[6]]
    assert [pynvml.nvmlDeviceGetIndex(handle) for handle in handles()] == [0, 1]


def test_an_xid_reaches_those_who_registered_for_it(session: Machine) -> None:
    first, second = handles()[:2]
    session.emit_xid(pynvml.nvmlDeviceGetUUID(first), 31)  # before anyone listens
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(first, pynvml.nvmlEventTypeXidCriticalError, events)
    session.emit_xid(pynvml.nvmlDeviceGetUUID(second), 48)  # not registered
    session.emit_event(pynvml.nvmlDeviceGetUUID(first), pynvml.nvmlEventTypeClock)  # not asked for
    session.emit_xid(pynvml.nvmlDeviceGetUUID(first), 79)
    event = pynvml.nvmlEventSetWait_v2(events, 10_000)
    assert (event.eventType, event.eventData) == (pynvml.nvmlEventTypeXidCriticalError, 79)
    assert pynvml.nvmlDeviceGetUUID(event.device) == pynvml.nvmlDeviceGetUUID(first)
    assert (event.gpuInstanceId, event.computeInstanceId) == (0xFFFFFFFF, 0xFFFFFFFF)
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(events, 0)
    pynvml.nvmlEventSetFree(events)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlEventSetWait_v2(events, 0)


def test_a_waiting_thread_is_woken_by_an_event_and_by_a_loss(session: Machine) -> None:
    handle = handles()[0]
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
    seen: list[object] = []

    def wait() -> None:
        for _ in range(2):
            try:
                seen.append(pynvml.nvmlEventSetWait_v2(events, 60_000).eventData)
            except pynvml.NVMLError as error:
                seen.append(error.value)

    waiter = threading.Thread(target=wait, name="event waiter")
    waiter.start()
    session.emit_xid(uuid, 94)
    session.lose_gpu(uuid)
    waiter.join(timeout=60)
    assert seen == [94, pynvml.NVML_ERROR_GPU_IS_LOST]


def test_many_threads_may_call_at_once(session: Machine) -> None:
    expected = uuids()
    wrong: list[object] = []

    def work(index: int) -> None:
        for number in range(200):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            if pynvml.nvmlDeviceGetUUID(handle) != expected[index]:
                wrong.append(index)
            if number % 50 == 0:
                pynvml.nvmlDeviceSetComputeMode(handle, 3)

    threads = [
        threading.Thread(target=work, args=(index,), name=f"caller {index}") for index in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not wrong
    assert [session.compute_mode(uuid) for uuid in expected] == [3] * 8
