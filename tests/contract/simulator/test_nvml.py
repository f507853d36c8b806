"""The simulated NVML as the real pynvml sees it."""

from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

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
