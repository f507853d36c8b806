"""The devices of a claim in the form that they have in a record, and that as JSON. Pure.

In: devices that a claim was allocated (claims/prepare/allocation.py). Out: what they are known by
when their GPU cannot be asked: by UUID, whatever the minor numbers do; JSON that later versions of
this driver still read; and the devices again, on the GPUs that are there.
"""

from collections.abc import Mapping
from typing import Any, Protocol, assert_never

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.claims.model.claim import allocation_id
from dra_driver.devices.kinds import Device, DeviceKind, GpuPart, NodeDevice
from dra_driver.devices.mig.partitions import partition_named
from dra_driver.devices.model import (
    Gpu,
    GpuUuid,
    Inventory,
    MigDevice,
    MigSlot,
    MigUuid,
    Partition,
    Placement,
)
from dra_driver.devices.shares import (
    ConsumableShare,
    ConsumableSlot,
    Divisible,
    Division,
    Share,
    ShareSlot,
    ShareStrategy,
    Slot,
)
from dra_driver.errors import TransientError, VersionError
from dra_driver.sharing.base import DeviceKey, DeviceUuid, share_key


class InventorySource(Protocol):
    """Knows the GPUs of this node (devices/watcher.py)."""

    def current(self) -> Inventory:
        """Return what the latest look found, without waiting."""
        ...


class RecordedGpu(Struct, frozen=True, kw_only=True):
    """A whole GPU."""

    gpu: GpuUuid

    @property
    def part(self) -> GpuPart:
        """What of the GPU it is."""
        return GpuPart(gpu=self.gpu)

    @property
    def device_uuid(self) -> DeviceUuid | None:
        """What a process names the device by."""
        return DeviceUuid(self.gpu)

    @property
    def key(self) -> DeviceKey | None:
        """What plans name the device by."""
        return DeviceKey(self.gpu)


class RecordedPartition(Struct, frozen=True, kw_only=True):
    """A MIG device that is to be made for this claim. `profile` is the profile's name."""

    gpu: GpuUuid
    profile: str
    profile_id: int
    placement: Placement

    @property
    def part(self) -> GpuPart:
        """What of the GPU it is."""
        return GpuPart(gpu=self.gpu, placement=self.placement)

    @property
    def slot(self) -> MigSlot:
        """Where it is."""
        return MigSlot(gpu=self.gpu, profile_id=self.profile_id, start=self.placement.start)

    @property
    def device_uuid(self) -> DeviceUuid | None:
        """None: it is not there yet."""
        return None

    @property
    def key(self) -> DeviceKey | None:
        """None: it is not there yet."""
        return None


class RecordedMig(Struct, frozen=True, kw_only=True):
    """A MIG device, with NVML's ids. `made_here`: it was made for this claim and goes with it."""

    place: RecordedPartition
    gpu_instance: int
    compute_instance: int
    uuid: MigUuid
    made_here: bool = False

    @property
    def gpu(self) -> GpuUuid:
        """The GPU that it is on."""
        return self.place.gpu

    @property
    def part(self) -> GpuPart:
        """What of the GPU it is."""
        return self.place.part

    @property
    def slot(self) -> MigSlot:
        """Where it is."""
        return self.place.slot

    @property
    def device_uuid(self) -> DeviceUuid | None:
        """What a process names the device by."""
        return DeviceUuid(self.uuid)

    @property
    def key(self) -> DeviceKey | None:
        """What plans name the device by."""
        return DeviceKey(self.uuid)


class RecordedShare(Struct, frozen=True, kw_only=True):
    """A share of a device, and how that is used as long as somebody has a share of it."""

    of: RecordedGpu | RecordedMig | RecordedPartition
    slot: Slot

    @property
    def gpu(self) -> GpuUuid:
        """The GPU that it is on."""
        return self.of.gpu

    @property
    def part(self) -> GpuPart:
        """What of the GPU it is."""
        return replace(self.of.part, share=self.slot)

    @property
    def device_uuid(self) -> DeviceUuid | None:
        """What a process names the device by."""
        return self.of.device_uuid

    @property
    def key(self) -> DeviceKey | None:
        """What plans name the share by."""
        uuid = self.of.device_uuid
        return None if uuid is None else share_key(uuid, self.slot.label)


RecordedDevice = RecordedGpu | RecordedMig | RecordedPartition | RecordedShare
"""The kinds of `devices.kinds.Device`, as a record has them."""


class DeviceRecord(Struct, frozen=True, kw_only=True):
    """One device of a claim. The name can come to mean another card; a UUID cannot.

    `subrequest` is what was chosen of a request with several; records of former versions lack it.
    """

    name: str
    device: RecordedDevice
    pool: str
    request_names: tuple[str, ...]
    cdi_device_ids: tuple[str, ...]
    admin_access: bool = False
    share_id: str | None = None
    subrequest: str | None = None

    @property
    def allocation_id(self) -> str:
        """What tells it from the claim's other devices."""
        return allocation_id(self.name, self.share_id)


def recorded(device: Device) -> RecordedDevice:
    """Return the form that a device has in a record."""
    match device:
        case Gpu() | Partition() | MigDevice():
            return _undivided_record(device)
        case Share() | ConsumableShare():
            return RecordedShare(of=_undivided_record(device.of), slot=device.slot)
        case _:
            assert_never(device)


def _undivided_record(device: Divisible) -> RecordedGpu | RecordedMig | RecordedPartition:
    match device:
        case Gpu():
            return RecordedGpu(gpu=device.uuid)
        case Partition():
            return place_of(device)
        case MigDevice():
            return RecordedMig(
                place=place_of(device),
                gpu_instance=device.gpu_instance,
                compute_instance=device.compute_instance,
                uuid=device.uuid,
                made_here=device.made_here,
            )
        case _:
            assert_never(device)


def undivided(device: RecordedDevice) -> RecordedGpu | RecordedMig | RecordedPartition:
    """Return the device that a share is of, and any other itself."""
    return device.of if isinstance(device, RecordedShare) else device


def recorded_kind(device: RecordedDevice) -> DeviceKind:
    """Return what kind a recorded device is to those who ask for it."""
    match device:
        case RecordedGpu():
            return DeviceKind.GPU
        case RecordedMig() | RecordedPartition():
            return DeviceKind.MIG
        case RecordedShare():
            return recorded_kind(device.of)
        case _:
            assert_never(device)


def place_of(device: MigDevice | Partition) -> RecordedPartition:
    """Return the form that a place on a GPU has in a record."""
    return RecordedPartition(
        gpu=device.parent,
        profile=device.profile.name,
        profile_id=device.profile.id,
        placement=device.placement,
    )


def restored(device: RecordedDevice, gpu: Gpu) -> NodeDevice:
    """Return a recorded device on its GPU. Raises TransientError while MIG profiles are unknown."""
    match device:
        case RecordedGpu() | RecordedPartition() | RecordedMig():
            found: Device = _restored(device, gpu)
        case RecordedShare():
            found = _restored_share(device.slot, _restored(device.of, gpu))
        case _:
            assert_never(device)
    return NodeDevice(gpu=gpu, device=found)


def _restored_share(slot: Slot, of: Divisible) -> Share | ConsumableShare:
    match slot:
        case ShareSlot():
            return Share(of=of, index=slot.index, division=slot.division)
        case ConsumableSlot():
            return ConsumableShare(of=of, slot=slot)
        case _:
            assert_never(slot)


def _restored(device: RecordedGpu | RecordedMig | RecordedPartition, gpu: Gpu) -> Divisible:
    match device:
        case RecordedGpu():
            return gpu
        case RecordedPartition():
            return _partition(gpu, device)
        case RecordedMig():
            partition = _partition(gpu, device.place)
            return MigDevice(
                parent=gpu.uuid,
                profile=partition.profile,
                placement=partition.placement,
                gpu_instance=device.gpu_instance,
                compute_instance=device.compute_instance,
                uuid=device.uuid,
                made_here=device.made_here,
            )
        case _:
            assert_never(device)


def _partition(gpu: Gpu, place: RecordedPartition) -> Partition:
    found = partition_named(gpu, place.profile_id, place.placement.start)
    if found is None:
        reason = gpu.mig.problem if gpu.mig is not None else None
        raise TransientError(
            f"MIG profile {place.profile} is not usable now: {gpu.uuid} does not name it"
            + (f" ({reason})" if reason else "")
        )
    return found


# JSON


def record_json(entry: DeviceRecord) -> dict[str, object]:
    """Return the record of a device as JSON."""
    return {
        "name": entry.name,
        "device": _device_json(entry.device),
        "pool": entry.pool,
        "requests": entry.request_names,
        "cdiDeviceIDs": entry.cdi_device_ids,
        "adminAccess": entry.admin_access,
        "shareID": entry.share_id,
        **({"subRequest": entry.subrequest} if entry.subrequest else {}),
    }


def record_of(value: Mapping[str, Any]) -> DeviceRecord:
    """Return what `record_json` made this of.

    Raises VersionError for an unknown kind; KeyError, TypeError or ValueError for other JSON.
    """
    return DeviceRecord(
        name=value["name"],
        device=_device(value["device"]),
        pool=value["pool"],
        request_names=tuple(value["requests"]),
        cdi_device_ids=tuple(value["cdiDeviceIDs"]),
        admin_access=value["adminAccess"],
        share_id=value["shareID"],
        subrequest=value.get("subRequest"),
    )


def partition_json(place: RecordedPartition) -> dict[str, object]:
    """Return the place of a MIG device as JSON."""
    return {
        "gpu": place.gpu,
        "profile": place.profile,
        "profileID": place.profile_id,
        "start": place.placement.start,
        "size": place.placement.size,
    }


def partition_of(value: Mapping[str, Any]) -> RecordedPartition:
    """Return what `partition_json` made this of; fails as `record_of` does."""
    return RecordedPartition(
        gpu=GpuUuid(value["gpu"]),
        profile=value["profile"],
        profile_id=int(value["profileID"]),
        placement=Placement(start=int(value["start"]), size=int(value["size"])),
    )


def _device_json(device: RecordedDevice) -> dict[str, object]:
    match device:
        case RecordedGpu():
            return {"kind": "gpu", "gpu": device.gpu}
        case RecordedPartition():
            return {"kind": "partition", **partition_json(device)}
        case RecordedMig():
            return {
                "kind": "mig",
                **partition_json(device.place),
                "gpuInstance": device.gpu_instance,
                "computeInstance": device.compute_instance,
                "uuid": device.uuid,
                "madeHere": device.made_here,
            }
        case RecordedShare():
            return {"kind": "share", "of": _device_json(device.of), **_slot_json(device.slot)}
        case _:
            assert_never(device)


def _device(value: Mapping[str, Any]) -> RecordedDevice:
    match value["kind"]:
        case "gpu":
            return RecordedGpu(gpu=GpuUuid(value["gpu"]))
        case "partition":
            return partition_of(value)
        case "mig":
            return RecordedMig(
                place=partition_of(value),
                gpu_instance=int(value["gpuInstance"]),
                compute_instance=int(value["computeInstance"]),
                uuid=MigUuid(value["uuid"]),
                made_here=bool(value["madeHere"]),
            )
        case "share":
            of = _device(value["of"])
            if isinstance(of, RecordedShare):
                raise TypeError("a share is of no other share")
            return RecordedShare(of=of, slot=_slot(value))
        case kind:
            raise VersionError(
                f"it has a device of kind {kind!r}, which this version does not know"
            )


def part_json(part: GpuPart) -> dict[str, object]:
    """Return a part of a GPU as JSON."""
    found: dict[str, object] = {"gpu": part.gpu}
    if part.placement is not None:
        found |= {"start": part.placement.start, "size": part.placement.size}
    if part.share is not None:
        found["share"] = _slot_json(part.share)
    return found


def part_of(value: Mapping[str, Any]) -> GpuPart:
    """Return what `part_json` made this of; fails as `record_of` does."""
    placement = None
    if "start" in value:
        placement = Placement(start=int(value["start"]), size=int(value["size"]))
    return GpuPart(
        gpu=GpuUuid(value["gpu"]),
        placement=placement,
        share=_slot(value["share"]) if "share" in value else None,
    )


def _slot_json(slot: Slot) -> dict[str, object]:
    match slot:
        case ShareSlot():
            return {"index": slot.index, "division": division_json(slot.division)}
        case ConsumableSlot():
            return {
                "shareID": slot.share_id,
                "strategy": str(slot.strategy),
                "memoryMiB": slot.memory_mib,
                "cores": slot.cores,
                **({"shares": slot.shares} if slot.shares != 1 else {}),
            }
        case _:
            assert_never(slot)


def division_json(division: Division) -> dict[str, object]:
    """Return how a device is divided as JSON."""
    return {
        "count": division.count,
        "strategy": str(division.strategy),
        "servedAs": division.served_as,
        "combines": division.combines,
        "freeCompute": division.free_compute,
        "together": division.together,
    }


def division_of(value: Mapping[str, Any]) -> Division:
    """Return what `division_json` made this of; fails as `record_of` does."""
    return Division(
        count=int(value["count"]),
        strategy=_strategy(value["strategy"]),
        served_as=value["servedAs"],
        combines=bool(value["combines"]),
        free_compute=bool(value["freeCompute"]),
        together=tuple(GpuUuid(uuid) for uuid in value["together"]),
    )


def _slot(value: Mapping[str, Any]) -> Slot:
    if "shareID" in value:
        return ConsumableSlot(
            share_id=value["shareID"],
            strategy=_strategy(value["strategy"]),
            memory_mib=int(value["memoryMiB"]),
            cores=int(value["cores"]),
            shares=int(value.get("shares", 1)),
        )
    return ShareSlot(index=int(value["index"]), division=division_of(value["division"]))


def _strategy(name: str) -> ShareStrategy:
    try:
        return ShareStrategy(name)
    except ValueError as error:
        raise VersionError(
            f"it has a share of strategy {name!r}, which this version does not know"
        ) from error
