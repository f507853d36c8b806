"""One look at machines whose NVML answers well, partly, or not at all."""

from pathlib import Path

import pytest
from msgspec.structs import replace

import make
from dra_driver.devices.model import Gpu, SickGpu
from dra_driver.devices.session import discover
from dra_driver.errors import DeviceError


class Answers:
    """An NVML that gives prepared answers; an error among them is raised."""

    def __init__(self, *gpus: Gpu | DeviceError) -> None:
        self._gpus = gpus

    def driver_version(self) -> str:
        return "550.54.15"

    def cuda_version(self) -> tuple[int, int]:
        return 12, 4

    def gpu_count(self) -> int:
        return len(self._gpus)

    def gpu_facts(self, index: int) -> Gpu:
        answer = self._gpus[index]
        if isinstance(answer, DeviceError):
            raise answer
        return replace(answer, index=index)


class Silent(Answers):
    def gpu_count(self) -> int:
        raise DeviceError("the driver does not answer")


def test_gpus_are_in_order_of_address_whatever_order_nvml_counts_in(tmp_path: Path) -> None:
    inventory = discover(Answers(make.gpu(7), make.gpu(2)), tmp_path)

    assert [(gpu.minor, gpu.index) for gpu in inventory.gpus] == [(2, 1), (7, 0)]


def test_versions_are_those_of_the_driver(tmp_path: Path) -> None:
    inventory = discover(Answers(), tmp_path)

    assert (inventory.driver_version, inventory.cuda_version) == ("550.54.15", (12, 4))
    assert (inventory.gpus, inventory.sick, inventory.problem) == ((), (), None)


def test_a_gpu_that_cannot_be_described_does_not_hide_the_others(tmp_path: Path) -> None:
    nvml = Answers(make.gpu(0), DeviceError("it is lost"), make.gpu(2))
    inventory = discover(nvml, tmp_path)

    assert [gpu.minor for gpu in inventory.gpus] == [0, 2]
    assert inventory.sick == (SickGpu(index=1, reason="it is lost"),)


def test_a_display_without_compute_is_left_out(tmp_path: Path) -> None:
    display = make.gpu(0, product_name="NVIDIA DGX Display")

    assert discover(Answers(display), tmp_path).gpus == ()


def test_a_driver_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="does not answer"):
        discover(Silent(), tmp_path)
