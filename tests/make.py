"""Builders of domain values for tests: complete, plausible values; override what matters."""

from dra_driver.devices.model import Gpu, GpuUuid, Inventory, MigMode, PciAddress


def gpu(minor: int = 0, **changes: object) -> Gpu:
    """An H100 whose identity follows from its minor number."""
    facts: dict[str, object] = {
        "index": minor,
        "minor": minor,
        "uuid": GpuUuid(f"GPU-00000000-0000-4000-8000-{minor:012x}"),
        "pci_address": PciAddress(f"0000:{0x10 + minor:02x}:00.0"),
        "product_name": "NVIDIA H100 80GB HBM3",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "cuda_compute_capability": (9, 0),
        "memory_bytes": 80 * 1024**3,
        "mig_mode": MigMode.DISABLED,
        "pcie_root": f"pci0000:{0x0F + minor:02x}",
        "numa_node": minor // 4,
        "addressing_mode": "HMM",
    }
    return Gpu(**(facts | changes))  # type: ignore[arg-type]


def inventory(*gpus: Gpu, **changes: object) -> Inventory:
    """An inventory of the given GPUs, or of two."""
    facts: dict[str, object] = {
        "driver_version": "535.261.03",
        "cuda_version": (12, 2),
        "gpus": gpus or (gpu(0), gpu(1)),
    }
    return Inventory(**(facts | changes))  # type: ignore[arg-type]
