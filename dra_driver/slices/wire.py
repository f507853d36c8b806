"""Builds one device of a ResourceSlice: its name, attributes and capacity. Pure.

How much a device consumes of its GPU's counters is computed in slices/offer/gpu.py.
"""

from collections.abc import Mapping, Sequence
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.devices.device import (
    Mig,
    NodeDevice,
    Vfio,
    Whole,
    memory_of,
    name_of,
    profile_of,
)
from dra_driver.devices.model import Gpu, GpuUuid, Inventory, MigProfile
from dra_driver.devices.shares import MIB, EqualShare, memory_mib
from dra_driver.slices import counters
from dra_driver.slices.attributes import RESOURCE_NAME, SHARED_AS, Attributes, Omitted, describe
from dra_driver.slices.consumable import ALLOWS_MULTIPLE, MOST_ADDED, Consumable, consumable
from resource_nvidia_com.quantity import Quantity

MOST_FACTS = 32
"""How many attributes and capacities one device may have together (resource.k8s.io/v1)."""

WireDevice = dict[str, object]
"""A `Device` of resource.k8s.io/v1: name, attributes, capacity, consumesCounters."""


class Published(Struct, frozen=True, kw_only=True):
    """A device to publish: its `wire` form without counters, its `source`, and its counters.

    `omitted` are the attributes that it lacks because the API would refuse them.
    """

    wire: WireDevice
    source: NodeDevice
    consumed: counters.Counters = {}
    omitted: Sequence[Omitted] = ()

    def consume(self, wanted: counters.Counters) -> "Published":
        """Return the device as it consumes these counters of its GPU as well."""
        return replace(self, consumed={**self.consumed, **wanted})

    def as_published(self) -> WireDevice:
        """Return the device in the form that a ResourceSlice has."""
        if not any(self.consumed.values()):
            return self.wire
        name = counters.counter_set_name(self.source.gpu)
        return self.wire | {"consumesCounters": counters.consumption(name, self.consumed)}


def wire_form(  # noqa: PLR0913 (everything that decides how it is published)
    source: NodeDevice,
    inventory: Inventory,
    *,
    joined: Mapping[GpuUuid, GpuUuid],
    in_parts: bool,
    consumable_by: Consumable,
    shared_as: str | None = None,
    serves: str | None = None,
) -> Published:
    """Return a device as it is published, without its counters.

    `in_parts`: partitions of its GPU are offered as well. `consumable_by`: how several claims can
    consume the device. `shared_as`: the extended resource that shares serve instead of it.
    `serves`: its extended resource, if not its kind's.
    """
    gpu, device = source.gpu, source.device
    attributes = Attributes(device=name_of(gpu, device))
    describe(source, inventory, attributes, joined)
    if shared_as is not None:
        attributes.text(SHARED_AS, shared_as)
    if serves is not None:
        attributes.text(RESOURCE_NAME, serves)
    omitted: Sequence[Omitted] = attributes.omitted
    match device.base:
        case Mig() | Whole() if isinstance(device.share, EqualShare):
            capacity = share_capacity(source, device.share)
        case Whole():
            capacity = gpu_capacity(gpu, in_parts=in_parts)
        case Mig(instance=None):
            capacity = counters.capacity(counters.engines(profile_of(gpu, device.base)))
        case Mig():
            added = MOST_ADDED if consumable_by.is_enabled else 0
            profile = profile_of(gpu, device.base)
            capacity, too_many = mig_capacity(device.base, profile, attributes, reserved=added)
            omitted = [*attributes.omitted, *too_many]
        case Vfio(address=address):
            cards = (card for card in inventory.passthrough if card.gpu.pci_address == address)
            size = str(Quantity.of_bytes(next((card.addressable_bytes for card in cards), 0)))
            capacity = _memory(gpu.memory_bytes) | {"addressableMemory": {"value": size}}
        case _:
            assert_never(device.base)
    wire: WireDevice = {"name": attributes.device, "attributes": attributes.values}
    is_shareable = device.exists and not isinstance(device.share, EqualShare)
    if is_shareable and consumable_by.is_enabled:
        wire[ALLOWS_MULTIPLE] = True
        capacity = consumable(capacity, shareable_memory(source, in_parts=in_parts), consumable_by)
    if capacity:
        wire["capacity"] = capacity
    return Published(wire=wire, source=source, omitted=omitted)


def gpu_capacity(gpu: Gpu, *, in_parts: bool) -> dict[str, object]:
    """Return the capacities of a whole GPU; `in_parts`: its partitions are offered as well."""
    if in_parts and gpu.mig is not None:
        # Even the memory is that of the largest profile, slightly less than NVML reports. NVIDIA's
        # driver does the same, and the counters do not let devices consume more.
        return counters.capacity(counters.most_engines(gpu.mig.profiles))
    return _memory(gpu.memory_bytes)


def shareable_memory(source: NodeDevice, *, in_parts: bool) -> int | None:
    """Return how much memory of a device claims can use together, in bytes; None if not known.

    It is never more than is published of the device for a single claim.
    """
    mig, base = source.gpu.mig, source.device.base
    usable = memory_of(source.gpu, base)
    if usable is not None and isinstance(base, Whole) and in_parts and mig is not None:
        return min(usable, counters.most_engines(mig.profiles)[counters.MEMORY])
    return usable


def share_capacity(source: NodeDevice, share: EqualShare) -> dict[str, object]:
    """Return the capacities of one of several equal shares."""
    total = memory_of(source.gpu, source.device.base)
    return _memory(None if total is None else memory_mib(total, 1, share.division.count) * MIB)


def _memory(size: int | None) -> dict[str, object]:
    """Return the capacity `memory` for a size in bytes; it is 0 if the size is not known.

    It is never left out: if a selector reads a capacity that a device lacks, that is an error, and
    the scheduler gives up on the pod (KEP-4381).
    """
    return {counters.MEMORY: {"value": str(Quantity.of_bytes(size or 0))}}


def mig_capacity(
    mig: Mig, profile: MigProfile, attributes: Attributes, *, reserved: int
) -> tuple[dict[str, object], list[Omitted]]:
    """Return a MIG device's capacities; memory slices only if they fit beside `reserved` others."""
    capacity = counters.capacity(counters.engines(profile))
    memory_slices = {
        f"memorySlice{number}": {"value": "1"} for number in mig.placement.memory_slices
    }
    taken = len(attributes.values) + len(capacity) + reserved
    if taken + len(memory_slices) <= MOST_FACTS:
        return capacity | memory_slices, []
    reason = f"the API allows a device {MOST_FACTS} attributes and capacities"
    return capacity, [Omitted(device=attributes.device, attribute="memorySlice…", reason=reason)]
