"""What a node's slices are made of, and how much of them is written again when one GPU changes.

In: what a variant publishes. Out: bytes of JSON without blanks, and numbers of writes. Pure.
"""

import json
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace
from testbed.api import Object

from bench.fleet.variants import Variant
from dra_driver.devices.model import Inventory
from dra_driver.fields import objects
from dra_driver.slices.pool import DesiredPool
from dra_driver.slices.publish.writes import Create, Owner, Update, Write, writes_for

PARTS = ("attributes", "capacity", "consumesCounters")
"""Fields of a device that are counted each for itself."""

_OWNER = Owner(name="node", uid="00000000-0000-0000-0000-000000000000")


def parts(pool: DesiredPool) -> dict[str, int]:
    """Return the bytes of a pool's slices by what they are for; `rest` is names and the frame."""
    found = dict.fromkeys((*PARTS, "sharedCounters"), 0)
    for content in pool.contents:
        if "sharedCounters" in content:
            found["sharedCounters"] += _size(content["sharedCounters"])
        for device in objects(content.get("devices")):
            for part in PARTS:
                found[part] += _size(device[part]) if part in device else 0
    return found | {"rest": sum(map(_size, slices_of(pool))) - sum(found.values())}


def slices_of(pool: DesiredPool) -> list[Object]:
    """Return the slices of a pool as an API server has them, as far as it matters here."""
    creates = writes_for(pool, (), owner=_OWNER)
    return [write.body for write in creates if isinstance(write, Create)]


def rewritten(variant: Variant, inventory: Inventory) -> dict[str, dict[str, int]]:
    """Return, by what happens to one GPU, the writes that follow and their bytes.

    The GPU is the middle one: what comes first or last in the slices may be cheaper.
    """
    gpus = inventory.gpus
    gpu = gpus[len(gpus) // 2]
    rest = replace(inventory, gpus=tuple(one for one in gpus if one is not gpu))
    all_of_them, without = (variant(one, _OWNER.name) for one in (inventory, rest))
    tainted = _tainted(all_of_them, f"gpu-{gpu.minor}")
    changes = {
        "goes": (all_of_them, without),
        "comes": (without, all_of_them),
        "gets a taint": (all_of_them, tainted),
    }
    return {name: _cost(before, after) for name, (before, after) in changes.items()}


def _cost(before: DesiredPool, after: DesiredPool) -> dict[str, int]:
    writes: Sequence[Write] = writes_for(after, slices_of(before), owner=_OWNER)
    bodies = [write.body for write in writes if isinstance(write, Create | Update)]
    return {"writes": len(writes), "bytes": sum(map(_size, bodies))}


def _tainted(pool: DesiredPool, gpu: str) -> DesiredPool:
    """Return a pool whose devices of one GPU, the whole one and its parts, have a taint."""
    taint = {"key": "gpu.nvidia.com/unhealthy", "value": "xid-79", "effect": "NoExecute"}

    def change(device: Mapping[str, object]) -> Mapping[str, object]:
        name = str(device["name"])
        mine = name == gpu or name.startswith(f"{gpu}-")
        return {**device, "taints": [taint]} if mine else device

    return replace(pool, contents=tuple(_each(content, change) for content in pool.contents))


def _each(
    content: Mapping[str, object],
    change: Callable[[Mapping[str, object]], Mapping[str, object]],
) -> Mapping[str, object]:
    if "devices" not in content:
        return content
    return {**content, "devices": [change(device) for device in objects(content["devices"])]}


def _size(thing: object) -> int:
    return len(json.dumps(thing, separators=(",", ":")).encode())
