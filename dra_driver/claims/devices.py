"""The devices of a claim: what their names mean, and the form they have in a record. Pure.

The scheduler allocates by name, and a name begins with a minor number (devices/names.py). It is
turned into a device of this node once, when a claim is prepared; from then on a record has it by
UUID, whatever the minor numbers do. The name of a MIG device says a place on a GPU; whether one is
there or has to be made is looked at later, under a lock (claims/realise.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, assert_never

from dra_driver.claims.model import Result
from dra_driver.devices.kinds import Device, DeviceKind, GpuPart, NodeDevice, name_of
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
from dra_driver.devices.names import GpuName, MigName, gpu_name, parse_device_name
from dra_driver.devices.partitions import partition_named
from dra_driver.errors import ConfigError, DeviceError, DriverError, TransientError, VersionError
from dra_driver.sharing.base import DeviceUuid


class InventorySource(Protocol):
    """Knows the GPUs of this node (devices/watcher.py)."""

    def current(self) -> Inventory:
        """Return what the latest look found, without waiting."""
        ...


# What a name means


def kind_named(name: str) -> DeviceKind:
    """Return the kind of a device from its name, which needs no GPU to answer."""
    match parse_device_name(name):
        case MigName():
            return DeviceKind.MIG
        case GpuName() | None:
            return DeviceKind.GPU  # no such name is found later


def allocated_devices(
    results: Sequence[Result], pool: str, inventory: Inventory
) -> dict[str, NodeDevice]:
    """Return what every allocated device is, by device name: a GPU, or a place on one.

    Raises:
        ConfigError: a device is of another pool than this node's.
        DeviceError: this node has no such device.
        TransientError: it is not there now, and this driver is still looking.
    """
    found: dict[str, NodeDevice] = {}
    for result in results:
        if result.pool != pool:
            raise ConfigError(
                f'device "{result.device}" is in pool "{result.pool}", and this node serves pool '
                f'"{pool}": the claim was allocated for another node'
            )
        device = _named(result.device, inventory)
        if device is None:
            kind = kind_named(result.device)
            raise _absent(f'device "{result.device}"', kind, inventory)
        found[result.device] = device
    return found


def _named(name: str, inventory: Inventory) -> NodeDevice | None:
    parsed = parse_device_name(name)
    if parsed is None:
        return None
    gpu = next((one for one in inventory.gpus if one.minor == parsed.minor), None)
    if gpu is None:
        return None
    match parsed:
        case GpuName():
            device: Device | None = gpu
        case MigName():
            device = partition_named(gpu, parsed.profile_id, parsed.start)
        case _:
            assert_never(parsed)
    # The readable part too: with another card in its place the number means another shape.
    if device is None or name_of(gpu, device) != name:
        return None
    return NodeDevice(gpu=gpu, device=device)


def _absent(what: str, kind: DeviceKind, inventory: Inventory) -> DriverError:
    if inventory.driver_version is None:
        return TransientError(
            f"the NVIDIA driver of this node does not answer, so {what} cannot be prepared yet; "
            "look at the log of this DRA driver on the node"
        )
    if inventory.sick:
        reasons = "; ".join(f"GPU {sick.index}: {sick.reason}" for sick in inventory.sick)
        if all(sick.is_lost for sick in inventory.sick):
            # Whichever of them it is, or if it is none of them: waiting brings it not back.
            return DeviceError(
                f"{what} is lost ({reasons}); once the GPU is back the pod starts by itself, to "
                "have it run elsewhere delete the pod and its claim"
            )
        return TransientError(f"{what} is not usable now ({reasons})")
    unclear = {gpu.uuid: gpu.mig.problem for gpu in inventory.gpus if gpu.mig and gpu.mig.problem}
    if unclear and kind is DeviceKind.MIG:
        reasons = "; ".join(f"{uuid}: {problem}" for uuid, problem in unclear.items())
        return TransientError(f"{what} is not usable now ({reasons})")
    names = ", ".join(gpu_name(gpu.minor) for gpu in inventory.gpus) or "no GPU"
    return DeviceError(
        f"{what} is not on this node, which has {names}; the GPUs changed after the claim was "
        "allocated: delete the pod and its claim so that they are scheduled anew"
    )


# The form in a record: what a device is known by when its GPU cannot be asked


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedGpu:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPartition:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMig:
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


RecordedDevice = RecordedGpu | RecordedMig | RecordedPartition
"""The kinds of `devices.kinds.Device`, as a record has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecord:
    """One device of a claim. The name can come to mean another card; a UUID cannot."""

    name: str
    device: RecordedDevice
    pool: str
    request_names: tuple[str, ...]
    cdi_device_ids: tuple[str, ...]
    admin_access: bool = False
    share_id: str | None = None


def recorded(device: Device) -> RecordedDevice:
    """Return the form that a device has in a record."""
    match device:
        case Gpu():
            return RecordedGpu(gpu=device.uuid)
        case Partition():
            return _place(device)
        case MigDevice():
            return RecordedMig(
                place=_place(device),
                gpu_instance=device.gpu_instance,
                compute_instance=device.compute_instance,
                uuid=device.uuid,
                made_here=device.made_here,
            )
        case _:
            assert_never(device)


def recorded_kind(device: RecordedDevice) -> DeviceKind:
    """Return what kind a recorded device is to those who ask for it."""
    match device:
        case RecordedGpu():
            return DeviceKind.GPU
        case RecordedMig() | RecordedPartition():
            return DeviceKind.MIG
        case _:
            assert_never(device)


def _place(device: MigDevice | Partition) -> RecordedPartition:
    return RecordedPartition(
        gpu=device.parent,
        profile=device.profile.name,
        profile_id=device.profile.id,
        placement=device.placement,
    )


def restored(device: RecordedDevice, gpu: Gpu) -> NodeDevice:
    """Return the device that a record is about, on the GPU that it is recorded with.

    Raises:
        TransientError: the GPU does not say at this moment which MIG profiles it has.
    """
    match device:
        case RecordedGpu():
            found: Device = gpu
        case RecordedPartition():
            found = _partition(gpu, device)
        case RecordedMig():
            partition = _partition(gpu, device.place)
            found = MigDevice(
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
    return NodeDevice(gpu=gpu, device=found)


def recorded_gpus(devices: Iterable[DeviceRecord], inventory: Inventory) -> dict[GpuUuid, Gpu]:
    """Return the GPUs that a record is about, wherever their minor numbers are now.

    Raises:
        DeviceError: one is no longer on this node.
        TransientError: one is not there now, and this driver is still looking.
    """
    known = {gpu.uuid: gpu for gpu in inventory.gpus}
    found: dict[GpuUuid, Gpu] = {}
    for entry in devices:
        gpu = known.get(entry.device.gpu)
        if gpu is None:
            what = f"{entry.device.gpu} (prepared as {entry.name})"
            raise _absent(what, DeviceKind.GPU, inventory)
        found[gpu.uuid] = gpu
    return found


def _partition(gpu: Gpu, place: RecordedPartition) -> Partition:
    found = partition_named(gpu, place.profile_id, place.placement.start)
    if found is None:
        reason = gpu.mig.problem if gpu.mig is not None else None
        raise TransientError(
            f"MIG profile {place.profile} is not usable now: {gpu.uuid} does not name it"
            + (f" ({reason})" if reason else "")
        )
    return found


# As JSON


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
    }


def record_of(value: Mapping[str, Any]) -> DeviceRecord:
    """Return what `record_json` made this of.

    Raises:
        VersionError: it is of a kind that is not known here.
        KeyError, TypeError, ValueError: it was made by something else.
    """
    return DeviceRecord(
        name=value["name"],
        device=_device(value["device"]),
        pool=value["pool"],
        request_names=tuple(value["requests"]),
        cdi_device_ids=tuple(value["cdiDeviceIDs"]),
        admin_access=value["adminAccess"],
        share_id=value["shareID"],
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
        case kind:
            raise VersionError(f"it has a device of kind {kind!r}, which is not known here")
