"""From the device names in a claim to the GPUs of this node. Pure.

The scheduler allocates by name, and a name is a minor number (devices/names.py). It is turned into
a GPU once, when a claim is prepared; from then on the claim has that GPU by its UUID, whatever the
minor numbers do.
"""

from collections.abc import Sequence

from dra_driver.claims.config import DeviceKind
from dra_driver.claims.model import Result
from dra_driver.claims.record import DeviceRecord
from dra_driver.devices.model import Gpu, GpuUuid, Inventory, MigMode
from dra_driver.devices.names import gpu_name
from dra_driver.errors import ConfigError, DeviceError, DriverError, TransientError


def kind_of(device: str) -> DeviceKind:
    """Return the kind of a device from its name, which needs no GPU to answer."""
    return DeviceKind.MIG if "-mig-" in device else DeviceKind.GPU


def allocated_gpus(results: Sequence[Result], pool: str, inventory: Inventory) -> dict[str, Gpu]:
    """Return the GPU of every allocated device, by device name.

    Raises:
        ConfigError: a device is of another pool than this node's.
        DeviceError: this node has no such device, or it cannot be used as it is.
        TransientError: it is not there now, and this driver is still looking.
    """
    named = {str(gpu_name(gpu.minor)): gpu for gpu in inventory.gpus}
    found: dict[str, Gpu] = {}
    for result in results:
        if result.pool != pool:
            raise ConfigError(
                f'device "{result.device}" is in pool "{result.pool}", and this node serves pool '
                f'"{pool}": the claim was allocated for another node'
            )
        if result.device not in named:
            raise _absent(f'device "{result.device}"', inventory)
        gpu = named[result.device]
        if gpu.mig_mode is MigMode.ENABLED and not result.admin_access:
            raise DeviceError(
                f'device "{result.device}" is in MIG mode and cannot be used as a whole: ask for a '
                f"MIG device, or have MIG turned off (nvidia-smi -i {gpu.index} -mig 0)"
            )
        found[result.device] = gpu
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


def _absent(what: str, inventory: Inventory) -> DriverError:
    if inventory.driver_version is None:
        return TransientError(
            f"the NVIDIA driver of this node does not answer, so {what} cannot be prepared yet; "
            "look at the log of this DRA driver on the node"
        )
    if inventory.sick:
        reasons = "; ".join(f"GPU {sick.index}: {sick.reason}" for sick in inventory.sick)
        return TransientError(f"{what} is not usable now ({reasons})")
    names = ", ".join(gpu_name(gpu.minor) for gpu in inventory.gpus) or "no GPU"
    return DeviceError(
        f"{what} is not on this node, which has {names}; the GPUs changed after the claim was "
        "allocated: delete the pod and its claim so that they are scheduled anew"
    )
