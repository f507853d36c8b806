"""One look at machines: the order of GPUs, and those that compute nothing."""

from pathlib import Path

from msgspec.structs import replace

import make
from dra_driver.devices.model import Gpu
from dra_driver.devices.session import discover


class Answers:
    """An NVML that gives prepared answers."""

    def __init__(self, *gpus: Gpu) -> None:
        self._gpus = gpus

    def driver_version(self) -> str:
        return "550.54.15"

    def cuda_version(self) -> tuple[int, int]:
        return 12, 4

    def gpu_count(self) -> int:
        return len(self._gpus)

    def gpu_facts(self, index: int) -> Gpu:
        return replace(self._gpus[index], index=index)


def test_gpus_are_in_order_of_address_whatever_order_nvml_counts_in(tmp_path: Path) -> None:
    inventory = discover(Answers(make.gpu(7), make.gpu(2)), tmp_path)

    assert [(gpu.minor, gpu.index) for gpu in inventory.gpus] == [(2, 1), (7, 0)]


def test_a_display_without_compute_is_left_out(tmp_path: Path) -> None:
    display = make.gpu(0, product_name="NVIDIA DGX Display")

    assert discover(Answers(display), tmp_path).gpus == ()
