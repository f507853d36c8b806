"""One look at a machine with a GPU that computes nothing."""

from pathlib import Path

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
        return self._gpus[index]


def test_a_display_without_compute_is_left_out(tmp_path: Path) -> None:
    display = make.gpu(0, product_name="NVIDIA DGX Display")

    assert discover(Answers(display), tmp_path).gpus == ()
