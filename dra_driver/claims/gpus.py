"""From the device names in a claim to the GPUs of this node, and to places on them. Pure.

The scheduler allocates by name, and a name begins with a minor number (devices/names.py). It is
turned into a GPU once, when a claim is prepared; from then on the claim has that GPU by its UUID,
whatever the minor numbers do. The name of a MIG device says where on the GPU it is: whether one is
there, or has to be made, is looked at later and under a lock (claims/mig.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dra_driver.claims.config import DeviceKind
from dra_driver.claims.model import Result
from dra_driver.claims.record import DeviceRecord
from dra_driver.devices.model import Gpu, GpuUuid, Inventory, Partition
from dra_driver.devices.names import gpu_name, parse_mig_name
from dra_driver.devices.partitions import partition_name, partition_named
from dra_driver.errors import ConfigError, DeviceError, DriverError, TransientError


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """What a device name means here: a GPU, or with a partition that place on it."""

    gpu: Gpu
    partition: Partition | None = None


def kind_of(device: str) -> DeviceKind:
    """Return the kind of a device from its name, which needs no GPU to answer."""
    return DeviceKind.GPU if parse_mig_name(device) is None else DeviceKind.MIG


def allocated_devices(
    results: Sequence[Result], pool: str, inventory: Inventory
) -> dict[str, Allocated]:
    """Return what every allocated device is, by device name.

    Raises:
        ConfigError: a device is of another pool than this node's.
        DeviceError: this node has no such device.
        TransientError: it is not there now, and this driver is still looking.
    """
    found: dict[str, Allocated] = {}
    for result in results:
        if result.pool != pool:
            raise ConfigError(
                f'device "{result.device}" is in pool "{result.pool}", and this node serves pool '
                f'"{pool}": the claim was allocated for another node'
            )
        device = _named(result.device, inventory)
        if device is None:
            raise _absent(f'device "{result.device}"', inventory)
        found[result.device] = device
    return found


def recorded_gpus(devices: Sequence[DeviceRecord], inventory: Inventory) -> dict[GpuUuid, Gpu]:
    """Return the GPUs that a record is about, wherever their minor numbers are now.

    Raises:
        DeviceError: one is no longer on this node.
        TransientError: one is not there now, and this driver is still looking.
    """
    known = {gpu.uuid: gpu for gpu in inventory.gpus}
    for device in devices:
        if device.uuid not in known:
            raise _absent(f"{device.uuid} (prepared as {device.name})", inventory)
    return {device.uuid: known[device.uuid] for device in devices}


def recorded_partition(gpu: Gpu, device: DeviceRecord) -> Partition:
    """Return the place that a record of a MIG device on this GPU is about.

    Raises:
        TransientError: the GPU does not say at this moment which profiles it has.
    """
    slot = device.slot
    place = None if slot is None else partition_named(gpu, slot.profile_id, slot.start)
    if place is None:
        reason = gpu.mig.problem if gpu.mig is not None else None
        raise TransientError(
            f'device "{device.name}" is not usable now: {gpu.uuid} names no such MIG profile'
            + (f" ({reason})" if reason else "")
        )
    return place


def _named(name: str, inventory: Inventory) -> Allocated | None:
    mig = parse_mig_name(name)
    for gpu in inventory.gpus:
        if mig is None and name == gpu_name(gpu.minor):
            return Allocated(gpu=gpu)
        if mig is not None and mig.minor == gpu.minor:
            place = partition_named(gpu, mig.profile_id, mig.start)
            # The readable part too: with another card in its place the number means another shape.
            if place is not None and partition_name(gpu, place) == name:
                return Allocated(gpu=gpu, partition=place)
    return None


def _absent(what: str, inventory: Inventory) -> DriverError:
    if inventory.driver_version is None:
        return TransientError(
            f"the NVIDIA driver of this node does not answer, so {what} cannot be prepared yet; "
            "look at the log of this DRA driver on the node"
        )
    if inventory.sick:
        reasons = "; ".join(f"GPU {sick.index}: {sick.reason}" for sick in inventory.sick)
        return TransientError(f"{what} is not usable now ({reasons})")
    unclear = [gpu for gpu in inventory.gpus if gpu.mig is not None and gpu.mig.problem is not None]
    if unclear and "-mig-" in what:
        reasons = "; ".join(f"{gpu.uuid}: {gpu.mig.problem}" for gpu in unclear if gpu.mig)
        return TransientError(f"{what} is not usable now ({reasons})")
    names = ", ".join(gpu_name(gpu.minor) for gpu in inventory.gpus) or "no GPU"
    return DeviceError(
        f"{what} is not on this node, which has {names}; the GPUs changed after the claim was "
        "allocated: delete the pod and its claim so that they are scheduled anew"
    )
