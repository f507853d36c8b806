"""Which kernels a work needs, and what they need of a card. Pure."""

from msgspec import Struct

from dra_driver.bench.tenant import kernels, matrices
from dra_driver.bench.workload import Precision, Workload, WorkloadKind

_NEEDS = {
    Precision.FP32: "",
    Precision.FP16: "arithmetic in half precision needs a card",
    Precision.TENSOR: "tensor cores are on cards",
}


class Program(Struct, frozen=True, kw_only=True):
    """Kernels by source and name; `least` is the lowest compute capability that they need."""

    source: str
    names: tuple[str, ...]
    least: tuple[int, int] = (0, 0)
    needs: str = ""


def program_of(work: Workload) -> Program:
    """Return the kernels of a work: no others, because compiling takes time."""
    if work.kind not in (WorkloadKind.GEMM, WorkloadKind.BURN):
        return Program(source=kernels.SOURCE, names=kernels.NAMES)
    return Program(
        source=kernels.FILL + matrices.source(work.precision),
        names=("fill", *matrices.names(work.precision)),
        least=matrices.LEAST_CAPABILITY[work.precision],
        needs=_NEEDS[work.precision],
    )
