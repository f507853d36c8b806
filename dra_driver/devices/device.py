"""The device that a claim can have: one value, from its allocation until it is released.

A `Device` is a whole GPU, a MIG device, a share of either, or a GPU for a virtual machine. It is
plain data: it can be hashed, is stored in records as it is, and contains nothing about the card
except its UUID. Facts about the card, such as its memory, are looked up in the inventory when they
are needed.

To add a kind of device, add a member to `Base`; to add a way to share one, add a member to `Share`.
Each layer has one exhaustive `match` over the union (or over `DeviceKind`, where only a device's
name is known), so mypy reports every place that does not handle the new member. Pure.
"""

import re
from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import NewType, assert_never

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.devices.model import (
    Gpu,
    GpuUuid,
    MigDevice,
    MigProfile,
    MigSlot,
    MigUuid,
    PciAddress,
    Placement,
    is_gpu_uuid,
)
from dra_driver.devices.names import (
    DeviceName,
    MigName,
    ShareName,
    VfioName,
    gpu_name,
    mig_name,
    parse_device_name,
    share_suffix,
)
from dra_driver.devices.shares import ConsumedShare, Division, EqualShare, Share
from dra_driver.errors import StateError, TransientError

_MIG_UUID = re.compile(r"MIG-[A-Za-z0-9/-]{1,120}")  # with slashes before driver 470

DeviceUuid = NewType("DeviceUuid", str)
"""The UUID by which processes name a device: a whole GPU's or a MIG device's."""

DeviceKey = NewType("DeviceKey", str)
"""The name of a claim's device in steps: its UUID, and the label of the share if it is one."""


class DeviceKind(StrEnum):
    """The kinds of device, with the values of the published attribute `type`."""

    GPU = "gpu"
    MIG = "mig"
    VFIO = "vfio"


class Whole(Struct, frozen=True, kw_only=True, tag_field="kind", tag="gpu"):
    """A whole GPU."""

    gpu: GpuUuid


class MigIds(Struct, frozen=True, kw_only=True, rename="camel"):
    """NVML's ids of a MIG device. `made_here`: it was made for its claim, and ends with it."""

    gpu_instance: int
    compute_instance: int
    uuid: MigUuid
    made_here: bool = False


class Mig(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename="camel",
    tag_field="kind",
    tag="mig",
):
    """A MIG device: a profile, by name and id, at a place on a GPU.

    `instance` is the existing one; None if it is yet to be made, or if it does not matter.
    """

    gpu: GpuUuid
    profile: str
    profile_id: int
    placement: Placement
    instance: MigIds | None = None

    @property
    def slot(self) -> MigSlot:
        """The slot that the device occupies."""
        return MigSlot(gpu=self.gpu, profile_id=self.profile_id, start=self.placement.start)


class Vfio(Struct, frozen=True, kw_only=True, tag_field="kind", tag="vfio"):
    """A GPU for a virtual machine: bound to a VFIO driver and known by its PCI address.

    `number` is its position among the GPUs on the PCI bus. `gpu` is a UUID made from its address.
    """

    gpu: GpuUuid
    address: PciAddress
    number: int


Base = Whole | Mig | Vfio
"""Hardware that exists or can be made."""


class Device(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A whole base, or a share of it."""

    base: Base
    share: Share | None = None

    @property
    def gpu(self) -> GpuUuid:
        """The GPU that the device is or is a part of."""
        return self.base.gpu

    @property
    def kind(self) -> DeviceKind:
        """The kind of device."""
        match self.base:
            case Whole():
                return DeviceKind.GPU
            case Mig():
                return DeviceKind.MIG
            case Vfio():
                return DeviceKind.VFIO
            case _:
                assert_never(self.base)

    @property
    def place(self) -> Base:
        """The base without its instance, so that it is the same before and after that is made."""
        return place_of(self.base)

    @property
    def uuid(self) -> DeviceUuid | None:
        """The UUID by which processes name the device; None if it is yet to be made."""
        match self.base:
            case Whole(gpu=gpu) | Vfio(gpu=gpu):
                return DeviceUuid(gpu)
            case Mig(instance=instance):
                return DeviceUuid(instance.uuid) if instance else None
            case _:
                assert_never(self.base)

    @property
    def known_uuid(self) -> DeviceUuid:
        """The UUID of a device that exists; otherwise StateError."""
        uuid = self.uuid
        if uuid is None:
            raise StateError(f"a MIG device of {self.gpu} does not exist yet")
        return uuid

    @property
    def exists(self) -> bool:
        """Whether the device exists already."""
        return self.uuid is not None

    @property
    def key(self) -> DeviceKey:
        """The key of what containers get for the device, which exists; otherwise StateError."""
        uuid = self.known_uuid
        return DeviceKey(uuid) if self.share is None else share_key(uuid, self.share.label)

    @property
    def division(self) -> Division | None:
        """How the base is divided, if this is one of its equal shares; otherwise None."""
        return self.share.division if self.share else None

    def is_like(self, other: "Device") -> bool:
        """Tell whether both are the same, even if the MIG device has been made again."""
        return (self.place, self.share) == (other.place, other.share)

    def overlaps(self, other: "Device") -> bool:
        """Tell whether the devices conflict, so that two claims cannot have both."""
        if self.gpu != other.gpu:
            return False
        if not isinstance(self.base, Mig) or not isinstance(other.base, Mig):
            is_same = type(self.base) is type(other.base)
        elif not self.base.placement.overlaps(other.base.placement):
            return False
        else:
            is_same = self.base.placement == other.base.placement
        if is_same and self.share and other.share:
            return not self.share.is_beside(other.share)
        return True


def overlap(some: Iterable[Device], others: Collection[Device]) -> bool:
    """Tell whether any device in one collection conflicts with one in the other."""
    return any(device.overlaps(other) for device in some for other in others)


def place_of(base: Base) -> Base:
    """Return a base without its instance."""
    return replace(base, instance=None) if isinstance(base, Mig) and base.instance else base


def share_key(uuid: DeviceUuid, label: str) -> DeviceKey:
    """Return the key by which steps name a share of a device; each share has its own label."""
    return DeviceKey(f"{uuid}#{label}")


def is_uuid_of(kind: DeviceKind, text: str) -> bool:
    """Tell whether a text has the form of a UUID of this kind of device (nvmlDeviceGetUUID)."""
    match kind:
        case DeviceKind.GPU | DeviceKind.VFIO:
            return is_gpu_uuid(text)
        case DeviceKind.MIG:
            return _MIG_UUID.fullmatch(text) is not None
        case _:
            assert_never(kind)


def equal_shares(base: Base, division: Division) -> tuple[Device, ...]:
    """Return all shares of a divided device."""
    return tuple(
        Device(base=base, share=EqualShare(index=index, division=division))
        for index in range(division.count)
    )


# Functions that need facts about the card


class NodeDevice(Struct, frozen=True, kw_only=True):
    """A device, and its GPU as a look found it."""

    gpu: Gpu
    device: Device


def whole(gpu: Gpu) -> Device:
    """Return a whole GPU as a device."""
    return Device(base=Whole(gpu=gpu.uuid))


def mig_at(gpu: GpuUuid, profile: MigProfile, placement: Placement) -> Mig:
    """Return the MIG device of a profile at a place, whether or not it exists."""
    return Mig(gpu=gpu, profile=profile.name, profile_id=profile.id, placement=placement)


def mig_of(device: MigDevice) -> Mig:
    """Return the MIG device that a look has found."""
    return replace(
        mig_at(device.parent, device.profile, device.placement),
        instance=MigIds(
            gpu_instance=device.gpu_instance,
            compute_instance=device.compute_instance,
            uuid=device.uuid,
            made_here=device.made_here,
        ),
    )


def profile_of(gpu: Gpu, mig: Mig) -> MigProfile:
    """Return a MIG device's profile. Raises TransientError while its GPU does not report it."""
    there = () if gpu.mig is None else gpu.mig.profiles
    known = (*there, *(instance.profile for instance in gpu.mig_instances))
    for profile in known:
        if profile.id == mig.profile_id:
            return profile
    reason = gpu.mig.problem if gpu.mig is not None else None
    raise TransientError(
        f"MIG profile {mig.profile} is not usable now: {gpu.uuid} does not name it"
        + (f" ({reason})" if reason else "")
    )


def memory_of(gpu: Gpu, base: Base) -> int | None:
    """Return the memory that all tenants of a device can have together, in bytes.

    None if the card does not report it. Memory that the GPU driver reserves for itself is left out,
    so that the last tenant gets what it was promised. A MIG device has the memory of its profile.
    Raises TransientError as `profile_of` does.
    """
    match base:
        case Whole() | Vfio():
            if gpu.memory_bytes is None:
                return None
            return gpu.memory_bytes - gpu.memory_reserved_bytes
        case Mig():
            return profile_of(gpu, base).memory_bytes
        case _:
            assert_never(base)


def kind_named(name: str) -> DeviceKind:
    """Return the kind of a device from its name alone; an unknown name counts as a GPU's."""
    match parse_device_name(name):
        case MigName() | ShareName(of=MigName()):
            return DeviceKind.MIG
        case VfioName():
            return DeviceKind.VFIO
        case _:
            return DeviceKind.GPU


def name_of(gpu: Gpu, device: Device) -> DeviceName:
    """Return the name under which this GPU, or a device on it, is published."""
    match device.share:
        case EqualShare(index=index, division=division):
            suffix = share_suffix(division.kind, index, division.count)
        case ConsumedShare() | None:
            suffix = ""
        case _:
            assert_never(device.share)
    base = device.base
    match base:
        case Whole():
            return DeviceName(f"{gpu_name(gpu.minor)}{suffix}")
        case Mig():
            return mig_name(gpu.minor, base.profile, base.profile_id, base.placement.start, suffix)
        case Vfio():
            return DeviceName(f"gpu-vfio-{base.number}")
        case _:
            assert_never(base)
