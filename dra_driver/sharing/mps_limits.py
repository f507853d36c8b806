"""Computes the limits that an MPS config sets for the devices to which it applies. Pure.

In: an MpsConfig and the UUIDs of the devices under it. Out: what each device allows a client, in
whole MiB, as the daemon takes it. The rules are those of NVIDIA's DRA driver: the default is for
all devices, entries of the map override it, and a key is a UUID or an index among the UUIDs in
alphabetical order, which is not NVML's index. Limits are rounded down to whole MiB.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dra_driver.devices.shares import MIB
from dra_driver.errors import ConfigError
from resource_nvidia_com.quantity import quantity_bytes

if TYPE_CHECKING:
    from resource_nvidia_com.v1beta1.sharing import MpsConfig


def pinned_memory_mib(config: "MpsConfig", uuids: Sequence[str]) -> Mapping[str, int | None]:
    """Return the limit of each device in MiB, in the order of the UUIDs; None is no limit.

    Raises ConfigError if a key names no device, or a device that another key names as well.
    """
    default = config.default_pinned_device_memory_limit
    limits: dict[str, int | None] = dict.fromkeys(
        sorted(uuids), None if default is None else quantity_bytes(default) // MIB
    )
    keys: dict[str, str] = {}
    for key, limit in (config.default_per_device_pinned_memory_limit or {}).items():
        uuid = _device(key, list(limits))
        if uuid in keys:
            raise ConfigError(
                f"invalid device: {keys[uuid]} and {key} are the same device of "
                "defaultPerDevicePinnedMemoryLimit, which can have only one limit"
            )
        keys[uuid] = key
        limits[uuid] = quantity_bytes(limit) // MIB
    return limits


def active_thread_percentage(config: "MpsConfig") -> int | None:
    """Return the percentage, None for no limit; NVIDIA's daemon takes 0 for none too."""
    return config.default_active_thread_percentage or None


def _device(key: str, uuids: Sequence[str]) -> str:
    if key in uuids:
        return key
    known = f"the devices under this config are {', '.join(uuids)}"
    # int() alone would also accept a sign, spaces and digits of other scripts.
    if not (key.isascii() and key.isdecimal()):
        raise ConfigError(f"invalid device: unable to parse key as an integer: {key}; {known}")
    if int(key) >= len(uuids):
        raise ConfigError(f"invalid device: invalid device index: {key}; {known}, from index 0")
    return uuids[int(key)]
