"""The hardware of the machine as frozen values.

They come from devices/session.py and contain nothing about Kubernetes. A field is optional if a
card may really lack the fact: NVML answers NOT_SUPPORTED for it.

MIG sizes and starts are counted in memory slices of the card: 8 on an A100 or H100, 4 on an A30, 12
on an RTX PRO 6000. A profile's id is the card's own number for it, which create calls take; it is
not the number in NVML's enumeration (nvml.h, NVML_GPU_INSTANCE_PROFILE_*).
"""

import re
from enum import StrEnum
from typing import NewType, Protocol

from msgspec import Struct, field
from msgspec.structs import astuple

_GPU_UUID = re.compile(r"GPU-[A-Za-z0-9-]{1,120}")

GpuUuid = NewType("GpuUuid", str)
"""`GPU-xxxxxxxx-…`, as nvmlDeviceGetUUID gives it."""

PciAddress = NewType("PciAddress", str)
"""`0000:65:00.0`: four-digit domain, lower case, as in /sys/bus/pci/devices."""

MigUuid = NewType("MigUuid", str)
"""`MIG-xxxxxxxx-…`, as nvmlDeviceGetUUID gives it for a MIG device."""


def is_gpu_uuid(text: str) -> bool:
    """Tell whether a text has the form of a GPU's UUID."""
    return _GPU_UUID.fullmatch(text) is not None


class MigMode(StrEnum):
    """The MIG mode of a GPU (nvmlDeviceGetMigMode)."""

    UNSUPPORTED = "unsupported"
    DISABLED = "disabled"
    ENABLED = "enabled"


class Placement(Struct, frozen=True, kw_only=True, order=True):
    """Memory slices `start` to `start + size - 1` of a GPU."""

    start: int
    size: int

    @property
    def memory_slices(self) -> range:
        """The memory slices that the placement covers."""
        return range(self.start, self.start + self.size)

    def overlaps(self, other: "Placement") -> bool:
        """Tell whether both placements cover the same memory slice."""
        return self.start < other.start + other.size and other.start < self.start + self.size


class MigProfile(Struct, frozen=True, kw_only=True):
    """One shape of GPU instance. `name` is spelled as users write it, such as `1g.10gb+me`.

    `instances` is the most such instances that the card can have. `placements` are all places where
    one can be, whatever is there now, in order of their start.
    """

    id: int
    name: str
    compute_slices: int
    instances: int
    memory_bytes: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int
    placements: tuple[Placement, ...]

    @property
    def has_graphics(self) -> bool:
        """Whether graphics APIs work on it, as the attribute `gfx` in its name says."""
        return "gfx" in self.name.partition("+")[2].replace("+", ",").split(",")


class MigSlot(Struct, frozen=True, kw_only=True):
    """A place for a MIG device: GPU, profile and start. It can hold one device at a time."""

    gpu: GpuUuid
    profile_id: int
    start: int


class _Placed(Struct, frozen=True, kw_only=True):
    parent: GpuUuid
    profile: MigProfile
    placement: Placement

    @property
    def slot(self) -> MigSlot:
        """The slot that the instance occupies."""
        return MigSlot(gpu=self.parent, profile_id=self.profile.id, start=self.placement.start)


class MigDevice(_Placed, frozen=True, kw_only=True):
    """A MIG device that exists: one GPU instance with one compute instance over all of it.

    The ids are NVML's. `made_here` says that this driver made it for a claim, or is making it.
    """

    gpu_instance: int
    compute_instance: int
    uuid: MigUuid
    made_here: bool = False


class BareInstance(_Placed, frozen=True, kw_only=True):
    """A GPU instance that is not a MIG device: it has no compute instance, or is divided further.

    It occupies its place and its engines all the same. `compute_instances` are ids.
    """

    gpu_instance: int
    compute_instances: tuple[int, ...] = ()
    made_here: bool = False


Instance = MigDevice | BareInstance
"""A GPU instance that exists."""


class MigFacts(Struct, frozen=True, kw_only=True):
    """MIG on one GPU: the card's profiles, and the instances that exist now.

    Attributes:
        profiles: as NVML reports them; empty if it does not.
        pending_mode: the mode after the next reset of the GPU.
        needs_reset: the mode changes only when the GPU is reset, as on Ampere.
        is_virtual: this is a vGPU, whose host decides how it is divided.
        turned_on_here: MIG mode is on because this driver turned it on for claims.
        instances: in order of their start.
        problem: why profiles or instances could not be read, for people; then both are empty.
    """

    profiles: tuple[MigProfile, ...]
    pending_mode: MigMode
    needs_reset: bool
    is_virtual: bool = False
    turned_on_here: bool = False
    instances: tuple[Instance, ...] = ()
    problem: str | None = None


class NvLink(Struct, frozen=True, kw_only=True):
    """One NVLink of a GPU that could lead to another GPU.

    Attributes:
        number: NVML's number of the link, counted from 0.
        is_active: the link is up; nothing else is known of a link that is not.
        peer: the PCI address at the other end; None if NVML does not say.
        to_switch: the other end is an NVSwitch, unless `peer` is a GPU of this node.
    """

    number: int
    is_active: bool
    peer: PciAddress | None = None
    to_switch: bool = False


class Fabric(Struct, frozen=True, kw_only=True):
    """A GPU's part in the NVLink fabric of its NVSwitches (nvmlDeviceGetGpuFabricInfoV).

    Attributes:
        state: how far the GPU has come in joining the fabric, NVML_GPU_FABRIC_STATE_*.
        status: the result of joining it, an nvmlReturn_t.
        cluster: UUID of the fabric; None if it has none, because it is limited to this node.
        clique: number of the group of GPUs in the fabric that can reach each other.
    """

    state: int
    status: int
    cluster: str | None = None
    clique: int = 0

    @property
    def is_joined(self) -> bool:
        """Whether the GPU has joined the fabric: NVML_GPU_FABRIC_STATE_COMPLETED and success."""
        return (self.state, self.status) == (3, 0)


class Vitals(Struct, frozen=True, kw_only=True):
    """The health of a GPU at a look, as NVML reports it. The numbers are those of nvml.h.

    A value is None if the card or its driver does not report it, which means nothing by itself.

    Attributes:
        recovery_action: what the driver wants done, NVML_GPU_RECOVERY_ACTION_*; 0 is nothing.
        rows_pending: bad memory will be replaced by spare memory at the next reset.
        rows_failed: such a replacement has failed, which is permanent.
        uncorrected: number of uncorrectable memory errors since the driver was loaded.
        slowdown: why clocks are lower than they could be, nvmlClocksEventReason*.
        fabric: how far the GPU has come in joining its NVLink fabric; state 0 if it has none.
    """

    recovery_action: int | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None
    uncorrected: int | None = None
    slowdown: int | None = None
    fabric: Fabric | None = None


class Gpu(Struct, frozen=True, kw_only=True):
    """One physical GPU, with all facts that are published or needed to prepare claims.

    Memory is in bytes; `memory_reserved_bytes` is the part that the driver keeps for itself.
    `minor` is N of /dev/nvidiaN, and may differ from `index`, NVML's position. `mig` is None for a
    card without MIG; `mig_mode` is the current mode. `is_persistent` says whether the GPU stays
    initialised while nobody has it open; None if the card does not say. `nvlinks` are the links
    that can reach another GPU; `fabric` is None if there is none. `vitals` are never compared.
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
    memory_reserved_bytes: int = 0
    pcie_root: str | None = None
    numa_node: int | None = None
    addressing_mode: str | None = None
    is_persistent: bool | None = None
    mig: MigFacts | None = None
    nvlinks: tuple[NvLink, ...] = ()
    fabric: Fabric | None = None
    vitals: Vitals = field(default_factory=Vitals)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gpu) and self._facts == other._facts

    def __hash__(self) -> int:
        return hash(self._facts)

    @property
    def _facts(self) -> tuple[object, ...]:
        return astuple(self)[:-1]  # without `vitals`

    @property
    def mig_instances(self) -> tuple[Instance, ...]:
        """The GPU instances that exist now; none for a card without MIG."""
        return () if self.mig is None else self.mig.instances

    @property
    def was_put_in_mig_mode(self) -> bool:
        """Whether the GPU is in MIG mode because someone other than this driver turned it on."""
        if self.mig_mode is not MigMode.ENABLED:
            return False
        return self.mig is None or not self.mig.turned_on_here


class PassthroughGpu(Struct, frozen=True, kw_only=True):
    """A GPU on the PCI bus that a virtual machine could have (devices/passthrough/).

    Attributes:
        gpu: what /sys says about it; the UUID is made from its address, whatever NVML says.
        number: its position among the GPUs on the PCI bus, by address.
        vendor_id, device_id: as the kernel writes them, such as `0x10de`.
        driver: the driver that it is bound to, such as `nvidia` or `vfio-pci`; None without one.
        group: number of its IOMMU group; -1 if it is in none.
        addressable_bytes: the sum of its 64-bit memory regions, rounded up to a power of two.
        has_iommufd: the node has /dev/iommu.
        problem: why it cannot be given to a virtual machine, for people; None if it can.
    """

    gpu: Gpu
    number: int
    vendor_id: str
    device_id: str
    driver: str | None
    group: int
    addressable_bytes: int
    has_iommufd: bool = False
    problem: str | None = None


class InstanceId(Struct, frozen=True, kw_only=True):
    """NVML's id of a GPU instance, and of a compute instance if only that one is meant."""

    gpu_instance: int
    compute_instance: int | None = None


class GpuEvent(Struct, frozen=True, kw_only=True):
    """An event of a GPU that NVML reported (nvmlEventSetWait_v2).

    `gpu` is a UUID. `xid` is None for an event of another kind, which is only a reason to look at
    the GPU. `instance` is the affected MIG instance; None means the whole GPU.
    """

    gpu: str
    xid: int | None = None
    instance: InstanceId | None = None


class Refusal(Struct, frozen=True, kw_only=True):
    """The fact that no MIG devices can be made on a GPU at present, with the reason.

    `waiting` are the slots that claims have already been given and still wait for. `is_of_mode`:
    the GPU cannot be switched to MIG mode because others have it open. Otherwise NVML refuses to
    make devices even in MIG mode.
    """

    reason: str
    is_of_mode: bool = True
    waiting: frozenset[MigSlot] = frozenset()


class SickGpu(Struct, frozen=True, kw_only=True):
    """A GPU that NVML counts but cannot describe. It is not published; other GPUs still are.

    `is_silent`: it does not answer at all, as opposed to a refusal. `is_lost`: it does not come
    back by itself.
    """

    index: int
    reason: str
    is_silent: bool = False
    is_lost: bool = False


class ExcludedGpu(Struct, frozen=True, kw_only=True):
    """A GPU that the node's admin excludes: it is not published, and nothing on it is changed.

    `why` names the word that excludes it. Only the index is known if the GPU cannot be described.
    `is_in_use`: a claim still has something of the GPU from before, so it is also among the
    inventory's GPUs until that is released.
    """

    index: int
    why: str
    minor: int | None = None
    uuid: GpuUuid | None = None
    pci_address: PciAddress | None = None
    product_name: str = ""
    is_in_use: bool = False

    def __str__(self) -> str:
        facts = ", ".join(filter(None, (self.product_name, self.uuid, self.pci_address)))
        return f"GPU {self.index}" + (f" ({facts})" if facts else "")


class Inventory(Struct, frozen=True, kw_only=True):
    """Everything that one look at the machine found. GPUs are in order of PCI address.

    `excluded` are the excluded GPUs in order of their index; `unmatched` says, for people, which
    words of the exclusion name no GPU.

    `passthrough` are the GPUs on the PCI bus in order of their number, those of the GPU driver
    included. It is empty unless GPUs are offered to virtual machines.

    `driver_version` is NVML's text, such as `535.261.03`; `cuda_version` is (major, minor). Both
    are None only if the driver could not be asked at all. There are no GPUs then, and `problem`
    says why, for people; it is None if no driver is loaded because VFIO drivers have all GPUs.
    """

    driver_version: str | None
    cuda_version: tuple[int, int] | None
    gpus: tuple[Gpu, ...] = ()
    sick: tuple[SickGpu, ...] = ()
    passthrough: tuple[PassthroughGpu, ...] = ()
    excluded: tuple[ExcludedGpu, ...] = ()
    unmatched: tuple[str, ...] = ()
    problem: str | None = None

    def known(self) -> dict[GpuUuid, Gpu]:
        """Return all GPUs by UUID, including those for virtual machines."""
        for_machines = {card.gpu.uuid: card.gpu for card in self.passthrough}
        return for_machines | {gpu.uuid: gpu for gpu in self.gpus}


class InventorySource(Protocol):
    """A source of this node's inventory (devices/watcher.py)."""

    def current(self) -> Inventory:
        """Return what the latest look found, without waiting."""
        ...
