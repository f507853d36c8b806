"""The kinds of device that a claim can have: one union, and what every layer needs to know of each.

A new kind of device is a new member of `Device`. Each layer has one exhaustive `match` over the
union (or over `DeviceKind`, where only the name of a device is known), so mypy names every place
that the new kind lacks. Pure.
"""

import re
from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.devices.mig.partitions import partition_name
from dra_driver.devices.model import Gpu, GpuUuid, MigDevice, Partition, Placement, is_gpu_uuid
from dra_driver.devices.names import DeviceName, gpu_name, share_suffix
from dra_driver.devices.shares import ConsumableShare, Division, Share, Slot

_MIG_UUID = re.compile(r"MIG-[A-Za-z0-9/-]{1,120}")  # with slashes before driver 470

Device = Gpu | MigDevice | Partition | Share | ConsumableShare
"""A whole GPU, a MIG device that exists or is yet to be made, or a share of what exists."""


class DeviceKind(StrEnum):
    """What a device is to those who ask for it: the values of the published attribute `type`."""

    GPU = "gpu"
    MIG = "mig"


class GpuPart(Struct, frozen=True, kw_only=True):
    """Some memory slices of a GPU, or with no placement all of it; with a share only that of it."""

    gpu: GpuUuid
    placement: Placement | None = None
    share: Slot | None = None

    @property
    def whole(self) -> "GpuPart":
        """The device that it is, or is a share of."""
        return self if self.share is None else replace(self, share=None)

    @property
    def division(self) -> Division | None:
        """How the device is divided of which this is a share; None for what is no such share."""
        return self.share.division if self.share else None

    @property
    def served(self) -> tuple[GpuUuid, ...]:
        """The GPUs that are in use with it: its own, or all that one server serves together."""
        return (self.division.together if self.division else ()) or (self.gpu,)

    def overlaps(self, other: "GpuPart") -> bool:
        """Tell whether two claims cannot have both."""
        if self.gpu != other.gpu:
            is_same_server = self.division is not None and self.division == other.division
            return not is_same_server and not set(self.served).isdisjoint(other.served)
        if self.share and other.share and self.placement == other.placement:
            return not self.share.is_beside(other.share)
        if self.placement is None or other.placement is None:
            return True
        return self.placement.overlaps(other.placement)


def overlap(some: Iterable[GpuPart], others: Collection[GpuPart]) -> bool:
    """Tell whether two claims cannot have what is in both."""
    return any(one.overlaps(other) for one in some for other in others)


class NodeDevice(Struct, frozen=True, kw_only=True):
    """A device, and the GPU that it is, or is a part or a share of."""

    gpu: Gpu
    device: Device


def kind_of(device: Device) -> DeviceKind:
    """Return what kind a device is to those who ask for it."""
    match device:
        case Gpu():
            return DeviceKind.GPU
        case MigDevice() | Partition():
            return DeviceKind.MIG
        case Share() | ConsumableShare():
            return kind_of(device.of)
        case _:
            assert_never(device)


def is_uuid_of(kind: DeviceKind, text: str) -> bool:
    """Tell whether a text has the form of the UUIDs of a kind of device (nvmlDeviceGetUUID)."""
    match kind:
        case DeviceKind.GPU:
            return is_gpu_uuid(text)
        case DeviceKind.MIG:
            return _MIG_UUID.fullmatch(text) is not None
        case _:
            assert_never(kind)


def name_of(gpu: Gpu, device: Device) -> DeviceName:
    """Return the name under which a device that is, or is a part of, this GPU is published."""
    match device:
        case Gpu():
            return gpu_name(gpu.minor)
        case MigDevice() | Partition():
            return partition_name(gpu, device)
        case Share(of=of):
            suffix = share_suffix(device.index, device.division.count)
            if isinstance(of, Gpu):
                return DeviceName(f"{gpu_name(gpu.minor)}{suffix}")
            return partition_name(gpu, of, suffix)
        case ConsumableShare():
            return name_of(gpu, device.of)
        case _:
            assert_never(device)
