"""Kernels of matrix products and of convolution, run on a CPU and compared with numpy."""

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
def test_a_product_is_numpys_and_what_is_known_of_it(cpu: Kernels, precision: Precision) -> None:
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


def convolved(images: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return a layer of 3 x 3 in full, with zeros beyond the edges; negative numbers become 0."""
    number, side, _, channels = images.shape
    wide = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    taps = weights.reshape(3, 3, channels, channels)
    out = np.zeros((number, side, side, channels))
    for y in range(3):
        for x in range(3):
            out += wide[:, y : y + side, x : x + side] @ taps[y, x]
    return np.maximum(out, 0)


def test_a_convolution_is_numpys(cpu: Kernels) -> None:
    dice, side = np.random.default_rng(2), 8
    images = dice.integers(-2, 3, (2, side, side, 64)).astype(np.float32)
    weights = dice.integers(-2, 3, (9 * 64, 64)).astype(np.float32)
    found = np.empty_like(images)
    cpu.run("convolution", matrices.of_convolution(2, side), found, images, weights, side)
    np.testing.assert_array_equal(found, convolved(images, weights))


def test_two_layers_over_ones_are_what_is_known_of_them(cpu: Kernels) -> None:
    side = 8
    images = np.ones((1, side, side, 64), np.float32)
    weights = np.full((9 * 64, 64), matrices.WEIGHT, np.float32)
    between, found = np.empty_like(images), np.empty_like(images)
    grid = matrices.of_convolution(1, side)
    cpu.run("convolution", grid, between, images, weights, side)
    cpu.run("convolution", grid, found, between, weights, side)
    assert found[0, 0, 0, 0] == matrices.FIRST_OF_IMAGE
    assert wrong(cpu, "images_differing", found, side) == 0
    found[0, 3, 4, 5] = 0
    assert wrong(cpu, "images_differing", found, side) == 1
