"""Builders of domain values for tests: complete, plausible values; override what matters."""

from collections.abc import Sequence
from typing import Any

from dra_driver.claims.model import ClaimRef, ClaimUid
from dra_driver.claims.record import DeviceRecord, Record, RecordState
from dra_driver.devices.model import Gpu, GpuUuid, Inventory, MigMode, PciAddress
from dra_driver.devices.names import DRIVER_NAME


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


def claim_object(
    *devices: str,
    uid: str = "11111111-0000-4000-8000-000000000000",
    name: str = "claim",
    namespace: str = "default",
    configs: Sequence[dict[str, Any]] = (),
    pool: str = "node-1",
) -> dict[str, Any]:
    """A ResourceClaim as the API server sends it, allocated to devices of one request `gpu`."""
    results = [
        {"request": "gpu", "driver": DRIVER_NAME, "pool": pool, "device": device}
        for device in devices
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"uid": uid, "namespace": namespace, "name": name},
        "status": {
            "allocation": {"devices": {"results": results, "config": list(configs)}},
            "reservedFor": [{"resource": "pods", "name": "pod", "uid": "pod-uid"}],
        },
    }


def config(
    *requests: str, source: str = "FromClaim", kind: str = "GpuConfig", **fields: Any
) -> dict[str, Any]:
    """An opaque config for this driver in a claim's allocation."""
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, **fields}
    opaque = {"driver": DRIVER_NAME, "parameters": parameters}
    return {"source": source, "requests": list(requests), "opaque": opaque}


def record(*gpus: Gpu, **changes: Any) -> Record:
    """The record of a claim prepared with the given GPUs, or with one."""
    uid = changes.pop("uid", "11111111-0000-4000-8000-000000000000")
    facts: dict[str, Any] = {
        "ref": ClaimRef(uid=ClaimUid(uid), namespace="default", name="claim"),
        "boot_id": "boot-1",
        "state": RecordState.PREPARED,
        "devices": tuple(
            DeviceRecord(
                name=f"gpu-{one.minor}",
                uuid=one.uuid,
                pool="node-1",
                request_names=("gpu",),
                cdi_device_ids=(f"k8s.gpu.nvidia.com/claim={uid}-gpu-{one.minor}",),
            )
            for one in gpus or (gpu(0),)
        ),
    }
    return Record(**(facts | changes))
