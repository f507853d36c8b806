"""The works of matrix products: one after another, and a burn over much memory.

Each number of a result is compared with the right one. A work ends at the first wrong number; a
burn counts them and continues, because its purpose is to find them.
"""

from dra_driver.bench.tenant import kernels, matrices
from dra_driver.bench.tenant.device import (
    Device,
    RefusedError,
    Task,
    check_first,
    count,
    mib_of,
    pointer,
    real,
    unsigned,
    unworked,
)
from dra_driver.bench.workload import MIB, Precision, Workload


def gemm(gpu: Device, work: Workload) -> Task:
    """Return the work of products into one and the same matrix."""
    rows, columns, depth = work.shape
    product = _Product(gpu, work)
    to = gpu.allocate(product.size)
    wrong = _Wrong(gpu, "differing", rows * columns, columns)

    def step() -> None:
        product.start(to)
        gpu.wait()

    return Task(
        step=step,
        check=lambda: wrong.check(to, matrices.FIRST),
        unit="GFLOP",
        units=matrices.gemm_gflop(rows, columns, depth),
        memory_mib=mib_of(product.factors + product.size),
    )


def burn(gpu: Device, work: Workload) -> Task:
    """Return the work of products all over the memory, each compared immediately."""
    rows, columns, depth = work.shape
    product = _Product(gpu, work)
    wrong = _Wrong(gpu, "differing", rows * columns, columns)
    wanted = max(1, (work.memory_mib * MIB - product.factors) // product.size)
    buffers = [gpu.allocate(product.size)]
    refused = None
    while len(buffers) < wanted:
        try:
            buffers.append(gpu.allocate(product.size))
        except RefusedError:
            refused = mib_of((wanted - len(buffers)) * product.size)
            break
    steps = errors = 0

    def step() -> None:
        nonlocal steps, errors
        to = buffers[steps % len(buffers)]
        product.start(to)
        errors += wrong.count(to)
        steps += 1

    def check() -> None:
        compared = steps * rows * columns
        if errors in (0, compared):
            check_first(gpu, buffers[(steps - 1) % len(buffers)], matrices.FIRST)

    return Task(
        step=step,
        check=check,
        unit="GFLOP",
        units=matrices.gemm_gflop(rows, columns, depth),
        memory_mib=mib_of(product.factors + len(buffers) * product.size),
        refused_mib=refused,
        wrong=lambda: errors,
    )


class _Product:
    """Two factors in GPU memory; `factors` is their size in bytes, and `size` a product's."""

    def __init__(self, gpu: Device, work: Workload) -> None:
        rows, columns, depth = work.shape
        element = matrices.element(work.precision)
        self.factors = (rows + columns) * depth * element
        self.size = rows * columns * kernels.FLOAT
        self._gpu = gpu
        self._name = f"gemm_{work.precision}"
        self._grid = matrices.of_gemm(work.precision, rows, columns)
        left, right = (gpu.allocate(side * depth * element) for side in (rows, columns))
        self._inputs = (pointer(left), pointer(right), unsigned(columns), unsigned(depth))
        kind = "numbers" if work.precision is Precision.FP32 else "halves"
        for address, number, wide, is_left in (
            (left, rows * depth, depth, 1),
            (right, depth * columns, columns, 0),
        ):
            arguments = (pointer(address), count(number), unsigned(wide), unsigned(is_left))
            gpu.launch(kind, kernels.over(number), *arguments)
        gpu.wait()

    def start(self, to: int) -> None:
        """Start to multiply."""
        self._gpu.launch(self._name, self._grid, pointer(to), *self._inputs)


class _Wrong:
    """Compares results with the right ones."""

    def __init__(self, gpu: Device, kernel: str, numbers: int, wide: int) -> None:
        self._gpu, self._kernel, self._numbers = gpu, kernel, numbers
        self._grid = kernels.over(numbers)
        self._facts = (count(numbers), unsigned(wide))
        self._counter = gpu.allocate(kernels.FLOAT)

    def check(self, address: int, first: float) -> None:
        """Raise an error if a number at an address is wrong; the first one is `first`."""
        check_first(self._gpu, address, first)
        if number := self.count(address):
            raise unworked(f"wrong in {number} of {self._numbers} numbers")

    def count(self, address: int) -> int:
        """Return how many numbers at an address are wrong."""
        counter = pointer(self._counter)
        self._gpu.launch("fill", kernels.over(1), counter, real(0.0), count(1))
        self._gpu.launch(self._kernel, self._grid, counter, pointer(address), *self._facts)
        self._gpu.wait()
        (number,) = self._gpu.read(self._counter, 1)
        return int(number)
