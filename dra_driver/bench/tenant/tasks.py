"""What a tenant does on the GPU: a work as memory, launches and a check of their result.

How often steps are made, and when, is in bench/tenant/arrivals.py.
"""

from typing import TYPE_CHECKING

from dra_driver.bench.tenant import kernels
from dra_driver.bench.tenant.device import (
    RefusedError,
    Task,
    count,
    mib_of,
    pointer,
    real,
    unsigned,
    unworked,
)
from dra_driver.bench.workload import MIB, Workload, WorkloadKind

if TYPE_CHECKING:
    from dra_driver.bench.tenant.cuda import Gpu

_CHUNK_MIB = 256
_LEAST_CHUNK_MIB = 2
_FACTOR = 0.5
_TOLERANCE = 1e-3
_TRIAD = 1.0 + _FACTOR * 2.0
_NEGATING = -2.0
"""x - 2x: another number after each step, so that a GPU which does nothing is noticed."""


def task(gpu: "Gpu", work: Workload) -> Task:
    """Allocate the memory of a work and return its task.

    Raises RefusedError if there is less memory than the work needs, DeviceError if CUDA refuses for
    another reason, and ValueError for a command, which is the runner's work.
    """
    match work.kind:
        case WorkloadKind.COMPUTE:
            return _compute(gpu, work.intensity)
        case WorkloadKind.BANDWIDTH:
            return _bandwidth(gpu, work.memory_mib)
        case WorkloadKind.INFERENCE:
            return _inference(gpu, work)
        case WorkloadKind.MEMORY:
            return _memory(gpu, work.memory_mib)
        case WorkloadKind.COMMAND:
            raise ValueError("a command is run by the runner, not by a tenant")


def _compute(gpu: "Gpu", intensity: int) -> Task:
    threads = kernels.COMPUTE_BLOCKS * kernels.THREADS
    out = gpu.allocate(threads * kernels.FLOAT)
    grid = kernels.Grid(blocks=(kernels.COMPUTE_BLOCKS, 1))

    def step() -> None:
        arguments = (pointer(out), real(0.5), real(0.5), unsigned(intensity))
        gpu.launch("multiply_add", grid, *arguments)
        gpu.wait()

    return Task(
        step=step,
        check=lambda: _check_first(gpu, out, float(kernels.CHAINS)),
        unit="GFLOP",
        units=kernels.compute_gflop(intensity),
        memory_mib=mib_of(threads * kernels.FLOAT),
    )


def _bandwidth(gpu: "Gpu", memory_mib: int) -> Task:
    number = max(1, memory_mib * MIB // (3 * kernels.FLOAT))
    to, left, right = (gpu.allocate(number * kernels.FLOAT) for _ in range(3))
    _fill(gpu, left, 1.0, number)
    _fill(gpu, right, 2.0, number)
    return Task(
        step=lambda: _triad(gpu, to, left, right, number),
        check=lambda: _check_first(gpu, to, _TRIAD),
        unit="GB",
        units=kernels.triad_gigabytes(number),
        memory_mib=3 * mib_of(number * kernels.FLOAT),
    )


def _inference(gpu: "Gpu", work: Workload) -> Task:
    number = work.width * work.width
    weights, first, other = (gpu.allocate(number * kernels.FLOAT) for _ in range(3))
    for address, value in ((weights, 1.0), (first, 1.0), (other, 0.0)):
        _fill(gpu, address, value, number)
    grid = kernels.of_product(work.width)

    def step() -> None:
        source, to = first, other
        for _ in range(work.layers):
            arguments = (pointer(to), pointer(source), pointer(weights), unsigned(work.width))
            gpu.launch("product", grid, *arguments)
            source, to = to, source
        gpu.wait()

    return Task(
        step=step,
        check=lambda: _check_first(gpu, other, 1.0),
        unit="requests",
        units=1.0,
        memory_mib=3 * mib_of(number * kernels.FLOAT),
    )


def _memory(gpu: "Gpu", wanted_mib: int) -> Task:
    """Take memory in large pieces, then in smaller ones, until there is enough or none is left.

    With 0 MiB, which means all there is, nothing counts as refused.
    """
    taken: list[tuple[int, int]] = []
    size = _CHUNK_MIB
    while size >= _LEAST_CHUNK_MIB:
        have = sum(mib for _, mib in taken)
        left = wanted_mib - have if wanted_mib else size
        if left <= 0:
            break
        asked = min(size, left)
        try:
            taken.append((gpu.allocate(asked * MIB), asked))
        except RefusedError:
            size //= 2
    have = sum(mib for _, mib in taken)
    if not taken:
        raise RefusedError(f"not even {_LEAST_CHUNK_MIB} MiB of GPU memory were free")
    for address, mib in taken:
        _fill(gpu, address, 1.0, mib * MIB // kernels.FLOAT)
    wanted = 1.0

    def step() -> None:
        nonlocal wanted
        for address, mib in taken:
            number = mib * MIB // kernels.FLOAT
            arguments = (pointer(address), pointer(address), pointer(address), real(_NEGATING))
            gpu.launch("triad", kernels.over(number), *arguments, count(number))
        gpu.wait()
        wanted = -wanted

    return Task(
        step=step,
        check=lambda: _check_first(gpu, taken[-1][0], wanted),
        unit="GB",
        units=have * MIB * 2 / 1e9,
        memory_mib=have,
        refused_mib=wanted_mib - have if have < wanted_mib else None,
    )


def _check_first(gpu: "Gpu", address: int, wanted: float) -> None:
    """Raise DeviceError if the first number at an address is not `wanted`."""
    (value,) = gpu.read(address, 1)
    if abs(value - wanted) > _TOLERANCE * abs(wanted):
        raise unworked(f"{value:g} where {wanted:g} is right")


def _fill(gpu: "Gpu", address: int, value: float, number: int) -> None:
    gpu.launch("fill", kernels.over(number), pointer(address), real(value), count(number))
    gpu.wait()


def _triad(gpu: "Gpu", to: int, left: int, right: int, number: int) -> None:
    arguments = (pointer(to), pointer(left), pointer(right), real(_FACTOR), count(number))
    gpu.launch("triad", kernels.over(number), *arguments)
    gpu.wait()
