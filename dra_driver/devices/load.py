"""How a GPU is used, as frozen values: its processes, its memory, and how busy it is.

The values come from nvml/load.py. Memory is in bytes, shares of time are 0 to 1. What NVML does not
know is None, such as how busy a GPU in MIG mode is, or the memory of some processes.
"""

from enum import StrEnum

from msgspec import Struct


class ProcessKind(StrEnum):
    """How a process uses a GPU. A process in several of NVML's lists has the last of these."""

    GRAPHICS = "graphics"
    COMPUTE = "compute"
    MPS = "mps"


class GpuProcess(Struct, frozen=True, kw_only=True):
    """A process on a GPU, with its PID in the PID namespace of this process.

    The instances are None on a GPU that is not divided. `sm` is the share of the last seconds in
    which its kernels ran on the GPU: 0 if it was idle, None if NVML does not say.
    """

    pid: int
    kind: ProcessKind
    memory_bytes: int | None
    sm: float | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


class Memory(Struct, frozen=True, kw_only=True):
    """Memory of a GPU or MIG device; `used_bytes` excludes what the driver reserves for itself."""

    total_bytes: int
    used_bytes: int


class MigLoad(Struct, frozen=True, kw_only=True):
    """A MIG device: its UUID, its ids, and its memory, which it shares with its GPU instance."""

    uuid: str
    gpu_instance: int
    compute_instance: int
    memory: Memory | None


class GpuLoad(Struct, frozen=True, kw_only=True):
    """How a GPU is used now. `index` is NVML's position, `minor` is N of /dev/nvidiaN."""

    index: int
    minor: int
    uuid: str
    product_name: str
    memory: Memory | None
    busy: float | None
    processes: tuple[GpuProcess, ...]
    migs: tuple[MigLoad, ...] = ()
