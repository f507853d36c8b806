"""One device as a ResourceSlice has it: name, attributes, capacity.

In: a device of this node, and what is offered of its GPU. Out: a `Device` of resource.k8s.io/v1 as
a plain dict, and which attributes there was no room for. What a device consumes of its GPU's
counters is found where that is known (slices/offer/gpu.py). Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from dra_driver.devices.kinds import NodeDevice, name_of
from dra_driver.devices.model import Gpu, GpuUuid, Inventory, MigDevice, Partition
from dra_driver.devices.nvlink import Joined
from dra_driver.devices.shares import ConsumableShare, Division, Share
from dra_driver.slices import counters
from dra_driver.slices.attributes import RESOURCE_NAME, SHARED_AS, Attributes, Omitted, describe
from dra_driver.slices.capacity import (
    gpu_capacity,
    mig_capacity,
    share_capacity,
    shareable_memory,
)
from dra_driver.slices.consumable import ALLOWS_MULTIPLE, MOST_ADDED, Consumable, consumable

WireDevice = dict[str, object]
"""A `Device` of resource.k8s.io/v1: name, attributes, capacity, consumesCounters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A device without what it consumes, what it is made of, and what it consumes."""

    wire: WireDevice
    source: NodeDevice
    consumed: dict[str, int] = field(default_factory=dict)

    def consume(self, wanted: counters.Counters) -> "Published":
        """Have it consume these of its GPU's counters, beside others; return it."""
        self.consumed.update(wanted)
        return self

    def as_published(self) -> WireDevice:
        """Return the device as a ResourceSlice has it."""
        if not any(self.consumed.values()):
            return self.wire
        name = counters.counter_set_name(self.source.gpu)
        return self.wire | {"consumesCounters": counters.consumption(name, self.consumed)}


def wire_form(  # noqa: PLR0913 (all that says how it is published)
    source: NodeDevice,
    inventory: Inventory,
    *,
    joined: Mapping[GpuUuid, Joined],
    in_parts: bool,
    consumable_by: Consumable,
    division: Division | None = None,
    serves: str | None = None,
) -> tuple[Published, Sequence[Omitted]]:
    """Return a device as it is published, without its counters, and what was left out.

    Args:
        source: the device.
        inventory: what the machine has.
        joined: the groups of its GPUs that NVLink joins.
        in_parts: whether partitions of its GPU are offered beside it.
        consumable_by: what several claims can have of a device that is not divided.
        division: how it is divided, if it is.
        serves: the extended resource that it serves, if that is not the one of its kind.
    """
    device = source.device
    attributes = Attributes(device=name_of(source.gpu, device))
    describe(source, inventory, attributes, joined)
    if division is not None:
        attributes.text(SHARED_AS, division.served_as)
    if serves is not None:
        attributes.text(RESOURCE_NAME, serves)
    omitted: Sequence[Omitted] = attributes.omitted
    match device:
        case Gpu():
            capacity = gpu_capacity(device, in_parts=in_parts)
        case MigDevice():
            added = MOST_ADDED if consumable_by.is_enabled else 0
            capacity, too_many = mig_capacity(device, attributes, reserved=added)
            omitted = [*attributes.omitted, *too_many]
        case Partition():
            capacity = counters.capacity(counters.engines(device.profile))
        case Share():
            capacity = share_capacity(device)
        case ConsumableShare():  # what is published is its device
            return wire_form(
                NodeDevice(gpu=source.gpu, device=device.of),
                inventory,
                joined=joined,
                in_parts=in_parts,
                consumable_by=consumable_by,
            )
        case _:
            assert_never(device)
    wire: WireDevice = {"name": attributes.device, "attributes": attributes.values}
    is_shareable = division is None and consumable_by.is_enabled
    if is_shareable and isinstance(device, Gpu | MigDevice):
        wire[ALLOWS_MULTIPLE] = True
        memory = shareable_memory(device, in_parts=in_parts)
        capacity = consumable(capacity, memory, consumable_by)
    if capacity:
        wire["capacity"] = capacity
    return Published(wire=wire, source=source), omitted
