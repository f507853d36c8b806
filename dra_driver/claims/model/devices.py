"""The devices of a claim: what their names mean, and the form they have in a record. Pure.

The scheduler allocates by name, and a name begins with a minor number (devices/names.py). It is
turned into a device of this node once, when a claim is prepared; from then on a record has it by
UUID, whatever the minor numbers do. The name of a MIG device says a place on a GPU; whether one is
there or has to be made is looked at later, under a lock (claims/prepare/realise.py). The name of a
share says of how many; what that means for its tenant is the division that holds for the device
now. A consumable share has the name of its device: that it is one, its share id says.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol, assert_never

from dra_driver.claims.model.claim import Result, allocation_id
from dra_driver.devices.kinds import Device, DeviceKind, GpuPart, NodeDevice, name_of
from dra_driver.devices.mig.partitions import partition_named
from dra_driver.devices.model import (
    ExcludedGpu,
    Gpu,
    GpuUuid,
    Inventory,
    MigDevice,
    MigSlot,
    MigUuid,
    Partition,
    Placement,
)
from dra_driver.devices.names import GpuName, MigName, ShareName, gpu_name, parse_device_name
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
from dra_driver.errors import ConfigError, DeviceError, DriverError, TransientError
from dra_driver.sharing.base import DeviceKey, DeviceUuid, share_key


class InventorySource(Protocol):
    """Knows the GPUs of this node (devices/watcher.py)."""

    def current(self) -> Inventory:
        """Return what the latest look found, without waiting."""
        ...


class DivisionSource(Protocol):
    """Knows how devices of this node are divided into shares (claims/state/divisions.py)."""

    def of(self, device: GpuPart) -> Division | None:
        """Return the division that holds for a device now; None: it is not divided.

        Raises:
            StateError: the records cannot be read.
            TransientError: it is not known yet.
        """
        ...


# What a name means


def kind_named(name: str) -> DeviceKind:
    """Return the kind of a device from its name, which needs no GPU to answer."""
    match parse_device_name(name):
        case MigName() | ShareName(of=MigName()):
            return DeviceKind.MIG
        case GpuName() | ShareName() | None:
            return DeviceKind.GPU  # no such name is found later


NO_STRATEGIES: Mapping[str, ShareStrategy] = MappingProxyType({})

_MIB = 1024**2


def allocated_devices(
    results: Sequence[Result],
    pool: str,
    inventory: Inventory,
    divisions: DivisionSource,
    strategies: Mapping[str, ShareStrategy] = NO_STRATEGIES,
) -> dict[str, NodeDevice]:
    """Return what every allocated device is, by allocation id: a GPU, a place on one, or a share.

    `strategies` says how consumable shares are used, by allocation id; time-slicing for others.

    Raises:
        ConfigError: a device is of another pool than this node's.
        DeviceError: this node has no such device, or its GPU is left out.
        TransientError: it is not there now, and this driver is still looking.
    """
    found: dict[str, NodeDevice] = {}
    for result in results:
        if result.pool != pool:
            raise ConfigError(
                f'device "{result.device}" is in pool "{result.pool}", and this node serves pool '
                f'"{pool}": the claim was allocated for another node'
            )
        if left_out := _excluded(result.device, inventory):
            raise DeviceError(
                f'device "{result.device}" is not given out any more: {left_out.why}; delete the '
                "pod and its claim so that they are scheduled again"
            )
        device = _named(result.device, inventory, divisions)
        if device is None:
            kind = kind_named(result.device)
            raise _absent(f'device "{result.device}"', kind, inventory)
        strategy = strategies.get(result.allocation_id, ShareStrategy.TIME_SLICING)
        found[result.allocation_id] = _consumed(device, result, strategy)
    return found


def _consumed(one: NodeDevice, result: Result, strategy: ShareStrategy) -> NodeDevice:
    """Return a consumable share in place of a device that was allocated with a share id."""
    device = one.device
    if result.share_id is None or result.admin_access:
        return one
    if isinstance(device, Share | ConsumableShare):
        raise DeviceError(
            f'device "{result.device}" is a share already and was allocated with share id '
            f"{result.share_id}: this driver publishes no such device; delete the pod and its claim"
        )
    slot = ConsumableSlot(
        share_id=result.share_id,
        strategy=strategy,
        memory_mib=result.consumed.get("memory", 0) // _MIB,
        cores=result.consumed.get("cores", 0),
    )
    return replace(one, device=ConsumableShare(of=device, slot=slot))


def _named(name: str, inventory: Inventory, divisions: DivisionSource) -> NodeDevice | None:
    parsed = parse_device_name(name)
    if parsed is None:
        return None
    of = parsed.of if isinstance(parsed, ShareName) else parsed
    gpu = next((one for one in inventory.gpus if one.minor == of.minor), None)
    base = None if gpu is None else _undivided(of, gpu)
    if gpu is None or base is None:
        return None
    device: Device = base
    if isinstance(parsed, ShareName):
        division = divisions.of(recorded(base).part)
        device = _share(name, parsed, base, division)
    # The readable part too: with another card in its place the number means another shape.
    return NodeDevice(gpu=gpu, device=device) if name_of(gpu, device) == name else None


def _excluded(name: str, inventory: Inventory) -> ExcludedGpu | None:
    """Return the GPU behind a name if it is left out."""
    parsed = parse_device_name(name)
    of = parsed.of if isinstance(parsed, ShareName) else parsed
    return next((one for one in inventory.excluded if of and one.minor == of.minor), None)


def part_named(name: str, inventory: Inventory) -> GpuPart | None:
    """Return what of which GPU a name means, and of a share its device; None if it is not here."""
    parsed = parse_device_name(name)
    of = parsed.of if isinstance(parsed, ShareName) else parsed
    gpu = next((one for one in inventory.gpus if of and one.minor == of.minor), None)
    device = _undivided(of, gpu) if of and gpu else None
    return recorded(device).part if device else None


def _undivided(name: GpuName | MigName, gpu: Gpu) -> Divisible | None:
    match name:
        case GpuName():
            return gpu
        case MigName():
            return partition_named(gpu, name.profile_id, name.start)
        case _:
            assert_never(name)


def _share(name: str, parsed: ShareName, base: Divisible, division: Division | None) -> Share:
    if division is None or division.count != parsed.count or parsed.index >= parsed.count:
        now = "not divided" if division is None else f"divided into {division.count} shares"
        raise DeviceError(
            f'device "{name}" is not on this node any more, where the device is {now}: the share '
            "config changed after the claim was allocated; delete the pod and its claim so that "
            "they are scheduled again"
        )
    return Share(of=base, index=parsed.index, division=division)


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
        "allocated: delete the pod and its claim so that they are scheduled again"
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

    @property
    def key(self) -> DeviceKey | None:
        """What plans name the device by."""
        return DeviceKey(self.gpu)


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

    @property
    def key(self) -> DeviceKey | None:
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

    @property
    def key(self) -> DeviceKey | None:
        """What plans name the device by."""
        return DeviceKey(self.uuid)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedShare:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecord:
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
