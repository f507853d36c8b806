"""What the machine has, as frozen values.

Comes from devices/session.py; there is no Kubernetes word in here. Optional fields are facts that a
card may truly lack: NVML answers NOT_SUPPORTED for them.

MIG: sizes and starts count memory slices of the card, 8 on an A100 or H100, 4 on an A30, 12 on an
RTX PRO 6000. A profile's id is the card's own number for it, which create calls take; it is not the
number of NVML's enumeration (nvml.h, NVML_GPU_INSTANCE_PROFILE_*).
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
    """MIG mode of a GPU (nvmlDeviceGetMigMode)."""

    UNSUPPORTED = "unsupported"
    DISABLED = "disabled"
    ENABLED = "enabled"


class Placement(Struct, frozen=True, kw_only=True, order=True):
    """Memory slices `start` to `start + size - 1` of a GPU."""

    start: int
    size: int

    @property
    def memory_slices(self) -> range:
        """The memory slices that are covered."""
        return range(self.start, self.start + self.size)

    def overlaps(self, other: "Placement") -> bool:
        """Tell whether both cover some memory slice."""
        return self.start < other.start + other.size and other.start < self.start + self.size


class MigProfile(Struct, frozen=True, kw_only=True):
    """One shape of GPU instance. `name` is as users write it, such as `1g.10gb+me`.

    `instances` is how many of it the card can have at most; `placements` are all places where one
    can be, whatever is there now, in order of their start.
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
        """Whether graphics APIs run on it: the attribute `gfx` in its name."""
        return "gfx" in self.name.partition("+")[2].replace("+", ",").split(",")


class MigSlot(Struct, frozen=True, kw_only=True):
    """A place for a MIG device: GPU, profile, start. At most one device can be there at a time."""

    gpu: GpuUuid
    profile_id: int
    start: int


class _Placed(Struct, frozen=True, kw_only=True):
    parent: GpuUuid
    profile: MigProfile
    placement: Placement

    @property
    def slot(self) -> MigSlot:
        """Where it is."""
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
    """A GPU instance that is no MIG device: without compute instance, or divided further.

    It takes its place and its engines all the same. `compute_instances` are ids.
    """

    gpu_instance: int
    compute_instances: tuple[int, ...] = ()
    made_here: bool = False


Instance = MigDevice | BareInstance
"""A GPU instance that exists."""


class MigFacts(Struct, frozen=True, kw_only=True):
    """MIG on one GPU: the profiles of the card, and the instances there are now.

    Attributes:
        profiles: what NVML answers, empty when it does not say.
        pending_mode: the mode after the next reset of the GPU.
        needs_reset: the mode changes only by a reset of the GPU, as on Ampere.
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

    @property
    def devices(self) -> tuple[MigDevice, ...]:
        """The MIG devices that exist."""
        return tuple(entry for entry in self.instances if isinstance(entry, MigDevice))


class NvLink(Struct, frozen=True, kw_only=True):
    """One NVLink of a GPU by which it could reach another one.

    Attributes:
        number: NVML's, from 0.
        is_active: it is up; of one that is not, nothing else is known.
        peer: address of what is at its other end; None where NVML does not say.
        to_switch: that is NVSwitch, unless `peer` is a GPU of this node.
    """

    number: int
    is_active: bool
    peer: PciAddress | None = None
    to_switch: bool = False


class Fabric(Struct, frozen=True, kw_only=True):
    """How a GPU stands to the NVLink fabric of its NVSwitches (nvmlDeviceGetGpuFabricInfoV).

    Attributes:
        state: how far it has come in joining it, NVML_GPU_FABRIC_STATE_*.
        status: how that ended, an nvmlReturn_t.
        cluster: UUID of the fabric; None where it has none: it is then of this node alone.
        clique: number of the GPUs of the fabric that reach each other.
    """

    state: int
    status: int
    cluster: str | None = None
    clique: int = 0

    @property
    def is_joined(self) -> bool:
        """Whether the GPU has joined it: NVML_GPU_FABRIC_STATE_COMPLETED, with success."""
        return (self.state, self.status) == (3, 0)


class Vitals(Struct, frozen=True, kw_only=True):
    """What NVML says at a look of how a GPU is doing. Numbers mean what nvml.h says.

    A value is None where the card or its driver does not say, which is no sign of anything.

    Attributes:
        recovery_action: what the driver wants done, NVML_GPU_RECOVERY_ACTION_*; 0 is nothing.
        rows_pending: memory is to be replaced by spare memory at the next reset.
        rows_failed: that has failed once, for good.
        uncorrected: errors of memory that could not be corrected, since the driver was loaded.
        slowdown: why clocks are lower than they could be, nvmlClocksEventReason*.
        fabric_state: how far it has come in joining its NVLink fabric; 0 if it has none.
        fabric_status: how that ended, an nvmlReturn_t.
    """

    recovery_action: int | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None
    uncorrected: int | None = None
    slowdown: int | None = None
    fabric_state: int | None = None
    fabric_status: int | None = None


class Gpu(Struct, frozen=True, kw_only=True):
    """One physical GPU with all facts that are published, prepared or injected.

    Memory is in bytes; `memory_reserved_bytes` is what the driver keeps of it for itself. `minor`
    is N of /dev/nvidiaN and need not equal `index`, NVML's position.
    `mig` is None for a card without MIG; `mig_mode` is the mode it is in now. `is_persistent`:
    whether it stays initialised while nobody has it open; None for a card that does not say.
    `nvlinks` are those that can reach another GPU; `fabric` is None for a GPU that reports none.
    `vitals` are how it was doing, which makes it no other GPU.
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
        """The GPU instances that there are now; none for a card without MIG."""
        return () if self.mig is None else self.mig.instances

    @property
    def was_put_in_mig_mode(self) -> bool:
        """Whether it is in MIG mode without this driver having turned it on."""
        if self.mig_mode is not MigMode.ENABLED:
            return False
        return self.mig is None or not self.mig.turned_on_here


class PassthroughGpu(Struct, frozen=True, kw_only=True):
    """A GPU of the PCI bus that can be given to a virtual machine (devices/passthrough/).

    Attributes:
        gpu: the GPU, as NVML describes it; of one that is not the GPU driver's now only what /sys
            says, and the UUID that it had, or one made of its address.
        number: its position among the GPUs of the PCI bus, by address.
        vendor_id, device_id: as the kernel writes them, such as `0x10de`.
        driver: what it is bound to, such as `nvidia` or `vfio-pci`; None: to none.
        group: number of its IOMMU group.
        addressable_bytes: the sum of its 64-bit memory regions, rounded up to a power of two.
        has_iommufd: the node has /dev/iommu.
        hangs: the kernel has not come back from the switch of its driver.
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
    hangs: bool = False
    problem: str | None = None

    @property
    def is_away(self) -> bool:
        """Whether the GPU driver does not have it."""
        return self.driver != GPU_DRIVER


GPU_DRIVER = "nvidia"
"""The GPU driver's name on the PCI bus."""


class InstanceId(Struct, frozen=True, kw_only=True):
    """A GPU instance by NVML's number, and if only one of its compute instances is meant that."""

    gpu_instance: int
    compute_instance: int | None = None


class GpuEvent(Struct, frozen=True, kw_only=True):
    """What NVML reported of a GPU by itself (nvmlEventSetWait_v2).

    `gpu` is a UUID. `xid` is None for an event of another kind, which says only that it is time to
    look. `instance` is the MIG instance that it is about; None for the whole GPU.
    """

    gpu: str
    xid: int | None = None
    instance: InstanceId | None = None


class Refusal(Struct, frozen=True, kw_only=True):
    """That no MIG device can be made on a GPU at present.

    `waiting` are those that were to be, and still are: somebody has them already. `is_of_mode`: it
    cannot be switched to MIG mode, because others have it open; else NVML refuses in MIG mode, too.
    """

    reason: str
    is_of_mode: bool = True
    waiting: frozenset[MigSlot] = frozenset()


class SickGpu(Struct, frozen=True, kw_only=True):
    """A GPU that NVML counts but cannot describe. It hides no other, and is never published.

    `is_silent`: it has not refused, but does not answer at all. `is_lost`: it does not come back by
    itself.
    """

    index: int
    reason: str
    is_silent: bool = False
    is_lost: bool = False


class ExcludedGpu(Struct, frozen=True, kw_only=True):
    """A GPU that is left out by its admin: never published, and nothing on it is changed.

    `why` says by what. Of one that cannot be described nothing but the index is known. While
    `is_in_use`, a claim has something of it from before: then it is among the inventory's GPUs too,
    and goes from there once that is taken back.
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
    """Everything one look at the machine found. GPUs are in order of PCI address.

    `excluded` are the GPUs that are left out, by their indices; `unmatched` says to people which
    words that should leave one out do not.

    `passthrough` are those that can be given to virtual machines, by number; most of them are among
    the GPUs as well. Empty unless they are offered.

    `driver_version` is NVML's text, such as `535.261.03`; `cuda_version` is (major, minor).
    Both are None only when the driver could not be asked at all; then there are no GPUs, and
    `problem` says why, for people; None where it is not loaded and VFIO drivers have all GPUs.
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
        """Return all GPUs by UUID, also those that the GPU driver does not have now."""
        away = {card.gpu.uuid: card.gpu for card in self.passthrough}
        return away | {gpu.uuid: gpu for gpu in self.gpus}


class InventorySource(Protocol):
    """Knows the GPUs of this node (devices/watcher.py)."""

    def current(self) -> Inventory:
        """Return what the latest look found, without waiting."""
        ...
