"""Builders of domain values for tests: complete, plausible values; override what matters."""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.model.record import ClaimRecord, DeviceRecord, RecordState
from dra_driver.devices import device as devices
from dra_driver.devices.device import Base, Device, NodeDevice
from dra_driver.devices.health import findings as known
from dra_driver.devices.health.findings import Finding
from dra_driver.devices.model import (
    BareInstance,
    Fabric,
    Gpu,
    GpuUuid,
    Inventory,
    MigDevice,
    MigFacts,
    MigMode,
    MigProfile,
    MigUuid,
    PassthroughGpu,
    PciAddress,
    Placement,
    Vitals,
)
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.mps.domain import DomainId
from dra_driver.sharing.memory_groups import MemoryGroups
from dra_driver.sharing.shares import ShareMemory
from dra_driver.sharing.steps import ClientLimits, JoinDomain
from resource_nvidia_com.decode import decode
from resource_nvidia_com.v1beta1.configs import GpuConfig


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


def node_gpus(count: int = 4, **changes: object) -> tuple[Gpu, ...]:
    """GPUs as unkind as those of nodes: what tells them apart has an order for each word.

    By PCI address, as a look finds them, NVML's positions go down; minor numbers and UUIDs are each
    in an order of their own, if there are three GPUs or more.
    """
    return tuple(
        gpu(
            (index + 1) % count,
            index=index,
            uuid=gpu((index + 2) % count).uuid,
            pci_address=gpu(count - 1 - index).pci_address,
            **changes,
        )
        for index in reversed(range(count))
    )


def vitals(**changes: object) -> Vitals:
    """What NVML says of a GPU that is well."""
    facts: dict[str, object] = {
        "recovery_action": 0,
        "rows_pending": False,
        "rows_failed": False,
        "uncorrected": 0,
        "slowdown": 0,
        "fabric": Fabric(state=3, status=0),
    }
    return Vitals(**(facts | changes))  # type: ignore[arg-type]


def whole(one: Gpu) -> NodeDevice:
    """A whole GPU as a device of its node."""
    return NodeDevice(gpu=one, device=devices.whole(one))


def device(one: Gpu | MigDevice) -> Device:
    """A GPU, or a MIG device that a look found, as a claim has it."""
    return devices.whole(one) if isinstance(one, Gpu) else Device(base=devices.mig_of(one))


def place(one: Gpu | MigDevice) -> Base:
    """By what the division of a device is known."""
    return device(one).place


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
            "allocation": {
                "devices": {"results": results, "config": list(configs)},
                "nodeSelector": node_selector(pool),
            },
            "reservedFor": [{"resource": "pods", "name": "pod", "uid": "pod-uid"}],
        },
    }


def pod_group(name: str) -> dict[str, str]:
    """A PodGroup as a claim's status.reservedFor names it."""
    return {
        "apiGroup": "scheduling.k8s.io",
        "resource": "podgroups",
        "name": name,
        "uid": f"uid-of-{name}",
    }


def node_selector(node: str) -> dict[str, Any]:
    """The node selector of an allocation with devices that only one node has."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {"nodeSelectorTerms": [{"matchFields": [field]}]}


def config(
    *requests: str, source: str = "FromClaim", kind: str = "GpuConfig", **fields: Any
) -> dict[str, Any]:
    """An opaque config for this driver in a claim's allocation."""
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, **fields}
    opaque = {"driver": DRIVER_NAME, "parameters": parameters}
    return {"source": source, "requests": list(requests), "opaque": opaque}


def schedule_configs(claim: dict[str, Any], *configs: dict[str, Any]) -> None:
    """Write configs into a claim's spec, and into its allocation as Kubernetes 1.37 copies them.

    What names no request that got a device is left out, and so are the names where a config names
    all (kubernetes staging/src/k8s.io/dynamic-resource-allocation, structured/internal).
    """
    devices = claim["status"]["allocation"]["devices"]
    got = {result["request"]: result["request"].partition("/")[0] for result in devices["results"]}
    claim["spec"] = {"devices": {"config": []}}
    for one in configs:
        written = {key: value for key, value in one.items() if key != "source"}
        claim["spec"]["devices"]["config"].append(written)
        names = set(one["requests"])
        named = [request for request, base in got.items() if names & {request, base}]
        if not names or len(named) == len(got):
            devices["config"].append({key: one[key] for key in ("source", "opaque")})
        elif named:
            devices["config"].append(one)


def passthrough(number: int = 0, **changes: Any) -> PassthroughGpu:
    """A GPU of the PCI bus that can be given to a virtual machine, at the address of a GPU."""
    unknown: dict[str, Any] = dict.fromkeys(("product_name", "brand", "architecture"), "")
    unknown |= dict.fromkeys(("addressing_mode", "memory_bytes"))
    facts: dict[str, Any] = {
        "gpu": replace(
            gpu(number),
            index=-1,
            minor=-1,
            uuid=GpuUuid(f"GPU-pci-0000-{0x10 + number:02x}-00-0"),
            cuda_compute_capability=(0, 0),
            mig_mode=MigMode.UNSUPPORTED,
            **unknown,
        ),
        "number": number,
        "vendor_id": "0x10de",
        "device_id": "0x2330",
        "driver": "vfio-pci",
        "group": 7,
        "addressable_bytes": 128 * 1024**3,
    }
    return PassthroughGpu(**(facts | changes))


def record(*gpus: Gpu, **changes: Any) -> ClaimRecord:
    """The record of a claim prepared with the given GPUs, or with one."""
    uid = changes.pop("uid", "11111111-0000-4000-8000-000000000000")
    facts: dict[str, Any] = {
        "ref": ClaimRef(uid=ClaimUid(uid), namespace="default", name="claim"),
        "boot_id": "boot-1",
        "state": RecordState.PREPARED,
        "devices": tuple(
            DeviceRecord(
                name=f"gpu-{one.minor}",
                device=device(one),
                pool="node-1",
                request_names=("gpu",),
                cdi_device_ids=(f"k8s.gpu.nvidia.com/claim={uid}-gpu-{one.minor}",),
            )
            for one in gpus or (gpu(0),)
        ),
        "steps": (),
    }
    return ClaimRecord(**(facts | changes))


def join(
    *devices: Device,
    domain: str = "uid-1",
    claim: str = "",
    mib: int | None = None,
    percentage: int | None = None,
) -> JoinDomain:
    """The step of a claim that joins the MPS domain of devices, with the same limits for each."""
    limits = ClientLimits(daemon_memory_mib=mib, active_thread_percentage=percentage)
    return JoinDomain(
        devices=devices,
        domain=DomainId(domain),
        claim=claim or domain,
        limits=(limits,) * len(devices),
        active_thread_percentage=percentage,
    )


def _profile(
    name: str, number: int, size: int, starts: str, most: int, *engines: int, mib: int
) -> MigProfile:
    """A MIG profile; engines are multiprocessors, copy, decoders, encoders, JPEG, OFA."""
    multiprocessors, copy, decoders, encoders, jpeg, ofa = engines
    return MigProfile(
        id=number,
        name=name,
        compute_slices=int(name[0]),
        instances=most,
        memory_bytes=mib * 1024**2,
        multiprocessors=multiprocessors,
        copy_engines=copy,
        decoders=decoders,
        encoders=encoders,
        jpeg_engines=jpeg,
        ofa_engines=ofa,
        placements=tuple(Placement(start=int(start), size=size) for start in starts.split()),
    )


H100_PROFILES = (
    _profile("1g.10gb", 19, 1, "0 1 2 3 4 5 6", 7, 16, 1, 1, 0, 1, 0, mib=9856),
    _profile("1g.10gb+me", 20, 1, "0 1 2 3 4 5 6", 1, 16, 1, 1, 0, 1, 1, mib=9856),
    _profile("1g.20gb", 15, 2, "0 2 4 6", 4, 26, 1, 1, 0, 1, 0, mib=19968),
    _profile("2g.20gb", 14, 2, "0 2 4", 3, 32, 2, 2, 0, 2, 0, mib=19968),
    _profile("3g.40gb", 9, 4, "0 4", 2, 60, 3, 3, 0, 3, 0, mib=40448),
    _profile("4g.40gb", 5, 4, "0", 1, 64, 4, 4, 0, 4, 0, mib=40448),
    _profile("7g.80gb", 0, 8, "0", 1, 132, 8, 7, 0, 7, 1, mib=81152),
)


def mig(*instances: MigDevice | BareInstance, **changes: object) -> MigFacts:
    """What an H100 says of MIG, with the given instances on it."""
    facts: dict[str, object] = {
        "profiles": H100_PROFILES,
        "pending_mode": MigMode.ENABLED if instances else MigMode.DISABLED,
        "needs_reset": False,
        "instances": instances,
    }
    return MigFacts(**(facts | changes))  # type: ignore[arg-type]


def mig_device(
    minor: int = 0, profile: str = "1g.10gb", start: int = 0, **changes: object
) -> MigDevice:
    """A MIG device on the GPU of that minor number; its ids follow from the start."""
    (shape,) = (one for one in H100_PROFILES if one.name == profile)
    (placement,) = (one for one in shape.placements if one.start == start)
    facts: dict[str, object] = {
        "parent": gpu(minor).uuid,
        "profile": shape,
        "placement": placement,
        "gpu_instance": start + 1,
        "compute_instance": 0,
        "uuid": MigUuid(f"MIG-00000000-0000-4000-8000-{minor:06x}{start:06x}"),
    }
    return MigDevice(**(facts | changes))  # type: ignore[arg-type]


def gpu_config(strategy: str | None = None, **settings: Any) -> GpuConfig:
    """A GpuConfig as a claim has it; `settings` are those of the strategy, by their API names."""
    field = {"MPS": "mpsConfig", "TimeSlicing": "timeSlicingConfig"}
    sharing = {"strategy": strategy, field[strategy]: settings} if strategy else None
    fields = {"sharing": sharing} if sharing else {}
    found = decode(config(**fields)["opaque"]["parameters"]).normalise()
    assert isinstance(found, GpuConfig)
    return found


def profile_like(shape: MigProfile, *, size: int, starts: Iterable[int]) -> MigProfile:
    """A MIG profile with other placements."""
    return replace(shape, placements=tuple(Placement(start=start, size=size) for start in starts))


def findings() -> tuple[Finding, ...]:
    """Every finding about a GPU, except those of unknown XIDs and actions."""
    return (
        *known.XIDS.values(),
        *known.RECOVERY_ACTIONS.values(),
        *(known.ROWS_FAILED, known.ROWS_PENDING, known.UNCORRECTED),
        *known.SLOWDOWNS.values(),
        *known.FABRIC_STATES.values(),
        known.FABRIC_FAILED,
        *(known.LOST, known.SILENT, known.REFUSED),
    )


class _NoGroups(MemoryGroups):
    """Control groups that are not available, without a reason."""

    def why_not(self, base: Base) -> str:
        return ""


def limited_by_mps() -> ShareMemory:
    """Memory that no control groups limit."""
    never: Any = None
    return ShareMemory(_NoGroups(never, never, lambda _: (), is_wanted=True))
