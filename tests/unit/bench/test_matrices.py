"""Kernels of matrix products, run on a CPU and compared with numpy."""

import numpy as np
import pytest

from cuda_on_cpu import Kernels
from dra_driver.bench.tenant import kernels, matrices
from dra_driver.bench.workload import Precision

ROWS, COLUMNS, DEPTH = 128, 256, 384


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return Kernels(tmp_path_factory.mktemp("kernels"))


def wrong(cpu: Kernels, kernel: str, found: np.ndarray, wide: int) -> float:
    counter = np.zeros(1, np.float32)
    cpu.run(kernel, kernels.over(1), counter, found, found.size, wide)
    return float(counter[0])


@pytest.mark.parametrize("precision", list(Precision))
def test_a_product_matches_numpy_and_the_known_result(cpu: Kernels, precision: Precision) -> None:
    is_full = precision is Precision.FP32
    kind, fill = (np.float32, "numbers") if is_full else (np.float16, "halves")
    left, right = np.empty((ROWS, DEPTH), kind), np.empty((DEPTH, COLUMNS), kind)
    cpu.run(fill, kernels.over(1), left, left.size, DEPTH, 1)
    cpu.run(fill, kernels.over(1), right, right.size, COLUMNS, 0)
    assert set(np.unique(left)) == {-3, -2, -1, 0, 1, 2, 3}
    sums = np.cumsum(left[:4, :, None].astype(int) * right[None, :, :4].astype(int), axis=1)
    assert abs(sums).max() < 2048  # whole numbers that half precision has, also half-way
    found = np.full((ROWS, COLUMNS), np.nan, np.float32)
    grid = matrices.of_gemm(precision, ROWS, COLUMNS)
    cpu.run(f"gemm_{precision}", grid, found, left, right, COLUMNS, DEPTH)
    np.testing.assert_array_equal(found, left.astype(np.float64) @ right.astype(np.float64))
    assert found[0, 0] == matrices.FIRST
    assert wrong(cpu, "differing", found, COLUMNS) == 0
    found[100, 7] += 1
    found[127, 255] = np.nan
    assert wrong(cpu, "differing", found, COLUMNS) == 2
