"""What NVML says of who uses a GPU, as frozen values: processes, memory, how busy it is.

Filled by nvml/load.py. Memory is in bytes, shares of time are 0 to 1. What NVML does not know is
None: in MIG mode how busy a GPU is, and of some processes how much memory they have.
"""

from enum import StrEnum

from msgspec import Struct


class ProcessKind(StrEnum):
    """How a process uses a GPU. One that is in several of NVML's lists has the last of these."""

    GRAPHICS = "graphics"
    COMPUTE = "compute"
    MPS = "mps"


class GpuProcess(Struct, frozen=True, kw_only=True):
    """A process on a GPU, by its PID as this process counts them.

    The instances are None on a GPU that is not divided. `sm` is for how much of the last seconds
    its kernels ran, as a share of the whole GPU; None where NVML does not say, 0 if it was idle.
    """

    pid: int
    kind: ProcessKind
    memory_bytes: int | None
    sm: float | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


class Memory(Struct, frozen=True, kw_only=True):
    """Memory of a GPU or MIG device; what the driver reserves for itself is part of neither."""

    total_bytes: int
    used_bytes: int


class MigLoad(Struct, frozen=True, kw_only=True):
    """A MIG device: its numbers, its UUID, and its memory, which all of a GPU instance share."""

    uuid: str
    gpu_instance: int
    compute_instance: int
    memory: Memory | None


class GpuLoad(Struct, frozen=True, kw_only=True):
    """A GPU as it is used now. `index` is NVML's, `minor` that of /dev/nvidiaN."""

    index: int
    minor: int
    uuid: str
    product_name: str
    memory: Memory | None
    busy: float | None
    processes: tuple[GpuProcess, ...]
    migs: tuple[MigLoad, ...] = ()
