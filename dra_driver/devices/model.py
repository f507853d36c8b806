"""What the machine has, as frozen values.

Comes from devices/discovery.py, goes to slices/ (what is published), claims/ (what is prepared) and
cdi/ (what a container gets). There is no Kubernetes word in here. Optional fields are facts that a
card may truly lack: NVML answers NOT_SUPPORTED for them.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

GpuUuid = NewType("GpuUuid", str)
"""`GPU-xxxxxxxx-…`, as nvmlDeviceGetUUID gives it."""

PciAddress = NewType("PciAddress", str)
"""`0000:65:00.0`: four-digit domain, lower case, as in /sys/bus/pci/devices."""


class MigMode(StrEnum):
    """Current MIG mode of a GPU (nvmlDeviceGetMigMode)."""

    UNSUPPORTED = "unsupported"
    DISABLED = "disabled"
    ENABLED = "enabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One physical GPU with all facts that are published, prepared or injected.

    Memory is in bytes. `minor` is N of /dev/nvidiaN and need not equal `index`, NVML's position.
    """

    index: int
    minor: int
    uuid: GpuUuid
    pci_address: PciAddress
    product_name: str
    brand: str
    architecture: str
    cuda_compute_capability: tuple[int, int]
    memory_bytes: int | None
    mig_mode: MigMode
    pcie_root: str | None = None
    numa_node: int | None = None
    addressing_mode: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SickGpu:
    """A GPU that NVML counts but cannot describe. It hides no other, and is never published."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Everything one look at the machine found. GPUs are in order of PCI address.

    `driver_version` is NVML's text, such as `535.261.03`; `cuda_version` is (major, minor).
    Both are None only when the driver could not be asked at all; then there are no GPUs, and
    `problem` says why, for people.
    """

    driver_version: str | None
    cuda_version: tuple[int, int] | None
    gpus: tuple[Gpu, ...] = ()
    sick: tuple[SickGpu, ...] = ()
    problem: str | None = None
