"""The devices that a driver has published, pool by pool, in the scheduler's order.

Only the newest generation of a pool counts, and only once it has as many slices as each of them
says. A node's slices are not another's, whatever pool they claim to belong to. Slices come in order
of their names. Missing counters and duplicate device names make a pool invalid (KEP-4381,
KEP-4815). A device's attributes say which resource name it serves. Pure.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress

from msgspec import Struct

from dra_driver.admin.api.nodes import Taint
from dra_driver.admin.api.slices import (
    Amounts,
    Capacity,
    CounterId,
    capacity_of,
    consumed_counters,
    shared_counters,
)
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.fields import Object, mapping, number, objects, text
from dra_driver.slices.consumable import ALLOWS_MULTIPLE


class Device(Struct, frozen=True, kw_only=True):
    """A published device.

    Attributes:
        resource: the extended resource name that it serves; None if only claims that name its class
            get it.
        consumes: what it takes of its pool's counters.
        taints: those that keep new claims away, as kubectl writes them: key=value:effect.
        capacities: what all claims together can consume, by name; empty for a device for one claim.
    """

    name: str
    resource: str | None
    consumes: Amounts
    taints: tuple[str, ...] = ()
    allows_multiple: bool = False
    capacities: Mapping[str, Capacity] = {}


class Pool(Struct, frozen=True, kw_only=True):
    """The newest generation of a pool.

    Attributes:
        node: the node whose devices these are; empty if it is no single one.
        devices: in the scheduler's order.
        counters: the total of each counter.
        problem: why the scheduler allocates nothing of it; None if nothing is wrong.
    """

    name: str
    node: str
    devices: tuple[Device, ...]
    counters: Amounts
    problem: str | None = None


class _Draft(Struct):
    """A generation of a pool while its slices are read; `contents` are by slice name."""

    generation: int
    slices: int
    contents: dict[str, tuple[list[Device], Amounts]] = {}


def read_pools(slices: Iterable[Object]) -> list[Pool]:
    """Return the pools of these slices, by node and name."""
    drafts: dict[tuple[str, str], _Draft] = {}
    for slice_ in slices:
        spec = mapping(slice_, "spec")
        pool = mapping(spec, "pool")
        generation = number(pool, "generation")
        key = text(spec, "nodeName"), text(pool, "name")
        draft = drafts.get(key)
        if draft is None or generation > draft.generation:
            draft = drafts[key] = _Draft(
                generation=generation,
                slices=number(pool, "resourceSliceCount"),
            )
        if generation == draft.generation:
            with suppress(ValueError):
                draft.contents[text(slice_, "metadata", "name")] = _contents(spec)
    return [_finished(node, name, draft) for (node, name), draft in sorted(drafts.items())]


def _finished(node: str, name: str, draft: _Draft) -> Pool:
    devices: list[Device] = []
    counters: dict[CounterId, int] = {}
    for _, (of_slice, there) in sorted(draft.contents.items()):
        devices += of_slice
        counters |= there
    return Pool(
        name=name,
        node=node,
        devices=tuple(devices),
        counters=counters,
        problem=_problem(draft, devices, counters),
    )


def _problem(draft: _Draft, devices: list[Device], counters: Amounts) -> str | None:
    if len(draft.contents) != draft.slices:
        return (
            f"{len(draft.contents)} of {draft.slices} ResourceSlices of generation "
            f"{draft.generation} are complete: its driver is writing them, or cannot"
        )
    names: set[str] = set()
    for device in devices:
        if device.name in names:
            return f"two devices are named {device.name}"
        names.add(device.name)
        if not device.consumes.keys() <= counters.keys():
            return f"device {device.name} consumes counters that are not published"
    return None


def _contents(spec: Object) -> tuple[list[Device], Amounts]:
    """Return what a slice has: devices, and the total of each counter."""
    counters = {
        CounterId(counter_set, name): amount
        for counter_set, amounts in shared_counters(spec)
        for name, amount in amounts.items()
    }
    return [_device(entry) for entry in objects(spec, "devices")], counters


def _device(entry: Object) -> Device:
    allows_multiple = entry.get(ALLOWS_MULTIPLE) is True
    shared = mapping(entry, "capacity") if allows_multiple else {}
    return Device(
        name=text(entry, "name"),
        resource=resource_name(mapping(entry, "attributes")),
        consumes=consumed_counters(entry),
        taints=tuple(
            str(taint) for taint in map(Taint.of, objects(entry, "taints")) if taint.blocks
        ),
        allows_multiple=allows_multiple,
        capacities={name: capacity_of(capacity) for name, capacity in shared.items()},
    )


def resource_name(attributes: Object) -> str | None:
    """Return the extended resource name that a device serves, by its attributes.

    A share names it. A whole GPU or MIG device that is divided into shares serves none: only a
    claim for its class gets it.
    """
    if _attribute(attributes, "sharedAs"):
        return None
    if name := _attribute(attributes, "resourceName"):
        return name
    match _attribute(attributes, "type"):
        case "gpu":
            return "nvidia.com/gpu"
        case "mig":
            return f"nvidia.com/mig-{_attribute(attributes, 'profile').replace('+', '.')}"
        case _:
            return None


def _attribute(attributes: Object, name: str) -> str:
    """Return a string attribute of the driver's own domain, which its name may say or not."""
    return text(mapping(attributes, name) or mapping(attributes, f"{DRIVER_NAME}/{name}"), "string")
