"""The device that a claim can have: one value, from its allocation to the undo of what it was.

A `Device` is a whole GPU or a MIG device, one of the shares of either, or a GPU for a virtual
machine. It is plain data: it can be hashed, stands in records as it is, and has nothing of the card
but its UUID. What the card is able to do, how much memory there is for one, is looked up in the
inventory when it is needed.

A new kind of device is a new member of `Base`, a new way to share one a new member of `Share`. Each
layer has one exhaustive `match` over the union (or over `DeviceKind`, where only the name of a
device is known), so mypy names every place that the new kind lacks. Pure.
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
from dra_driver.devices.names import DeviceName, gpu_name, mig_name, share_suffix, vfio_name
from dra_driver.devices.shares import ConsumedShare, Division, EqualShare, Share
from dra_driver.errors import TransientError

_MIG_UUID = re.compile(r"MIG-[A-Za-z0-9/-]{1,120}")  # with slashes before driver 470

DeviceUuid = NewType("DeviceUuid", str)
"""What a process names its device by: a whole GPU's UUID or a MIG device's."""

DeviceKey = NewType("DeviceKey", str)
"""What steps name a device of a claim by: its UUID, and for a share also which one it is."""


class DeviceKind(StrEnum):
    """What a device is to those who ask for it: the values of the published attribute `type`."""

    GPU = "gpu"
    MIG = "mig"
    VFIO = "vfio"


class Whole(Struct, frozen=True, kw_only=True, tag_field="kind", tag="gpu"):
    """A whole GPU."""

    gpu: GpuUuid


class MigIds(Struct, frozen=True, kw_only=True, rename="camel"):
    """What NVML knows a MIG device by. `made_here`: it was made for its claim and goes with it."""

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

    `instance` is the one that is there; None: it is to be made, or it makes no difference.
    """

    gpu: GpuUuid
    profile: str
    profile_id: int
    placement: Placement
    instance: MigIds | None = None

    @property
    def slot(self) -> MigSlot:
        """Where it is."""
        return MigSlot(gpu=self.gpu, profile_id=self.profile_id, start=self.placement.start)


class Vfio(Struct, frozen=True, kw_only=True, tag_field="kind", tag="vfio"):
    """A GPU as a virtual machine has it: taken from the GPU driver, known by its PCI address.

    `number` is its position among the GPUs of the PCI bus. `gpu` is the UUID that it has with the
    GPU driver, which keeps it apart from all else that is given out of that GPU.
    """

    gpu: GpuUuid
    address: PciAddress
    number: int


Base = Whole | Mig | Vfio
"""Hardware that is there, or can be made."""


class Device(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All of a base, or only a share of it."""

    base: Base
    share: Share | None = None

    @property
    def gpu(self) -> GpuUuid:
        """The GPU that it is, or that it is on."""
        return self.base.gpu

    @property
    def kind(self) -> DeviceKind:
        """What it is to those who ask for it."""
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
        """The base, whatever instance is there: the same before and after one is made."""
        return place_of(self.base)

    @property
    def uuid(self) -> DeviceUuid | None:
        """What a process names the device by; None while it is yet to be made."""
        match self.base:
            case Whole(gpu=gpu) | Vfio(gpu=gpu):
                return DeviceUuid(gpu)
            case Mig(instance=instance):
                return DeviceUuid(instance.uuid) if instance else None
            case _:
                assert_never(self.base)

    @property
    def exists(self) -> bool:
        """Whether it is there: not yet to be made."""
        return self.uuid is not None

    @property
    def key(self) -> DeviceKey | None:
        """What steps name it by; None while it is yet to be made."""
        uuid = self.uuid
        if uuid is None:
            return None
        return DeviceKey(uuid) if self.share is None else share_key(uuid, self.share.label)

    @property
    def division(self) -> Division | None:
        """How the device that this is a share of is divided; None if this is no such share."""
        return self.share.division if self.share else None

    @property
    def served(self) -> tuple[GpuUuid, ...]:
        """The GPUs that are in use with it: its own, or all that one server serves together."""
        return (self.division.together if self.division else ()) or (self.gpu,)

    def overlaps(self, other: "Device") -> bool:
        """Tell whether two claims cannot have both."""
        if self.gpu != other.gpu:
            is_same_server = self.division is not None and self.division == other.division
            return not is_same_server and not set(self.served).isdisjoint(other.served)
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
    """Tell whether two claims cannot have what is in both."""
    return any(device.overlaps(other) for device in some for other in others)


def place_of(base: Base) -> Base:
    """Return a base without the instance that is there."""
    return replace(base, instance=None) if isinstance(base, Mig) and base.instance else base


def share_key(uuid: DeviceUuid, label: str) -> DeviceKey:
    """Return what steps name a share of a device by; the label tells the shares apart."""
    return DeviceKey(f"{uuid}#{label}")


def key_uuid(key: DeviceKey) -> DeviceUuid:
    """Return the UUID of the device that steps name by a key."""
    return DeviceUuid(key.partition("#")[0])


def is_uuid_of(kind: DeviceKind, text: str) -> bool:
    """Tell whether a text has the form of the UUIDs of a kind of device (nvmlDeviceGetUUID)."""
    match kind:
        case DeviceKind.GPU | DeviceKind.VFIO:
            return is_gpu_uuid(text)
        case DeviceKind.MIG:
            return _MIG_UUID.fullmatch(text) is not None
        case _:
            assert_never(kind)


def equal_shares(base: Base, division: Division) -> tuple[Device, ...]:
    """Return all shares of a device that is divided."""
    return tuple(
        Device(base=base, share=EqualShare(index=index, division=division))
        for index in range(division.count)
    )


# On the card that is there


class NodeDevice(Struct, frozen=True, kw_only=True):
    """A device, and the GPU that it is, or is a part or a share of, as a look found it."""

    gpu: Gpu
    device: Device


def whole(gpu: Gpu) -> Device:
    """Return a GPU as a device."""
    return Device(base=Whole(gpu=gpu.uuid))


def mig_at(gpu: GpuUuid, profile: MigProfile, placement: Placement) -> Mig:
    """Return the MIG device that is, or could be, at a place."""
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
    """Return the profile of a MIG device. Raises TransientError while its GPU does not name it."""
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
    """Return the memory that tenants of a device can have together, in bytes.

    None for a card that does not say. What the GPU driver reserves of a GPU for itself is left
    out, so that the last tenant gets what it was promised; a MIG device has what its profile says.
    Raises TransientError as `profile_of`.
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


def name_of(gpu: Gpu, device: Device) -> DeviceName:
    """Return the name under which a device that is, or is on, this GPU is published."""
    match device.share:
        case EqualShare(index=index, division=division):
            suffix = share_suffix(index, division.count)
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
            return vfio_name(base.number)
        case _:
            assert_never(base)
