"""The capacities of a device, in the form the API takes.

In: a device. Out: `capacity` of resource.k8s.io/v1 as a plain dict, named as NVIDIA's own DRA
driver names it. Rules: at most 32 attributes and capacities together. What several claims can have
of a device is another's concern (slices/consumable.py), to which this says how much memory it is.
Pure.
"""

from dra_driver.devices.model import Gpu, MigDevice
from dra_driver.devices.shares import Share, memory_mib, memory_of
from dra_driver.slices import counters
from dra_driver.slices.attributes import Attributes, Omitted
from resource_nvidia_com.quantity import Quantity

MOST_FACTS = 32
"""Attributes and capacities that one device may have together."""

_MIB = 1024**2


def gpu_capacity(gpu: Gpu, *, in_parts: bool) -> dict[str, object]:
    """Return the capacities of a whole GPU; `in_parts`: partitions of it are offered as well."""
    if in_parts and gpu.mig is not None:
        # Of memory too it is what its largest profile has, slightly less than NVML says of the GPU:
        # so it is with NVIDIA's driver, and so it is what the counters let be consumed.
        return counters.capacity(counters.most_engines(gpu.mig.profiles))
    if gpu.memory_bytes is None:
        return {}
    return {"memory": {"value": str(Quantity.of_bytes(gpu.memory_bytes))}}


def shareable_memory(device: Gpu | MigDevice, *, in_parts: bool) -> int | None:
    """Return the memory that claims can use of a device together, in bytes; None if not known.

    No more than is published of the device for one claim.
    """
    usable = memory_of(device)
    if usable is None or isinstance(device, MigDevice):
        return usable
    if in_parts and device.mig is not None:
        return min(usable, counters.most_engines(device.mig.profiles)[counters.MEMORY])
    return usable


def share_capacity(share: Share) -> dict[str, object]:
    """Return the capacities of one of several equal shares."""
    total = memory_of(share.of)
    if total is None:
        return {}
    memory = memory_mib(total, 1, share.division.count) * _MIB
    return {"memory": {"value": str(Quantity.of_bytes(memory))}}


def mig_capacity(
    mig: MigDevice, attributes: Attributes, *, reserved: int
) -> tuple[dict[str, object], list[Omitted]]:
    """Return the capacities of a MIG device, with its memory slices if there is room for them.

    `reserved` is how many more capacities it is to get.
    """
    capacity = counters.capacity(counters.engines(mig.profile))
    memory_slices = {
        f"memorySlice{number}": {"value": "1"} for number in mig.placement.memory_slices
    }
    taken = len(attributes.values) + len(capacity) + reserved
    if taken + len(memory_slices) <= MOST_FACTS:
        return capacity | memory_slices, []
    reason = f"the API allows a device {MOST_FACTS} attributes and capacities"
    return capacity, [Omitted(device=attributes.device, attribute="memorySlice…", reason=reason)]
