"""What the cluster offers, as a table for people and as JSON for programs.

Nothing is left out in silence: below the numbers stands what they do not count, and why. Pure.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from dra_driver.admin.api.allocations import Allocation
from dra_driver.admin.cluster.consumption import CapacityUsage
from dra_driver.admin.cluster.usage import AllocatedDevice, ClusterUsage, PoolUsage, ResourceUsage
from dra_driver.admin.table import aligned
from dra_driver.slices.consumable import CORES, MEMORY, SHARES

_COLUMNS = ("NODE", "RESOURCE NAME", "OFFERED", "USED", "BLOCKED", "FREE")
_WIDE_COLUMNS = ("NODE", "DEVICE", "RESOURCE NAME", "CLAIM", "USED BY")
_CAPACITY_COLUMNS = (
    "NODE",
    "RESOURCE NAME",
    "CAPACITY",
    "OFFERED",
    "USED",
    "FREE",
    "MOST ON ONE DEVICE",
)
_CONSUMES = "CONSUMES"
_BY_CLAIM = "(by claim)"
"""Stands for the resource name of devices that serve none."""

_NONE = "-"
_ANY = "any"
"""Stands for any number."""

_NANO = 10**9
_MIB = 1024**2

_WORDS: Mapping[str, Callable[[int], str]] = MappingProxyType(
    {
        MEMORY: lambda amount: f"{amount // _MIB} MiB",
        CORES: lambda amount: f"{amount} %",
        SHARES: str,
    }
)
"""The capacities that people are shown, and how: by no other one is a claim limited."""


def table(found: ClusterUsage, *, wide: bool = False) -> str:
    """Return it for people; `wide` adds every allocated device with its claim and pods."""
    rows = [
        (_node(pool), each.resource or _BY_CLAIM, *_numbers(each))
        for pool in found.pools
        for each in pool.resources
        if each.resource or each.parts  # who asks by resource name has no use for the others
    ]
    lines = aligned([_COLUMNS, *rows]) if rows else ["no devices are published"]
    if capacities := list(_capacity_rows(found)):
        lines += ["", *aligned([_CAPACITY_COLUMNS, *capacities])]
    if wide and (allocated := list(_allocated_rows(found))):
        lines += ["", *aligned(allocated)]
    for title, entries in _sections(found).items():
        if entries:
            lines += ["", f"{title}:", *(f"  {entry}" for entry in entries)]
    return "\n".join(lines) + "\n"


def report(found: ClusterUsage) -> str:
    """Return it as JSON, for programs."""
    document = {
        "nodes": [
            {
                "name": one.pool.node or None,
                "pool": one.pool.name,
                "problem": one.pool.problem,
                "resources": [
                    {
                        "name": each.resource,
                        "offered": each.offered,
                        "used": each.used,
                        "blocked": each.blocked,
                        "free": each.free,
                        "parts": each.parts,
                        "capacities": {
                            name: _capacity_json(one) for name, one in each.capacities.items()
                        },
                    }
                    for each in one.resources
                ],
                "allocated": [
                    _allocation_json(each.allocation) | {"resource": each.device.resource}
                    for each in one.allocated
                ],
                "tainted": [
                    {"device": device.name, "taints": device.taints} for device in one.tainted
                ],
                "notPublished": [_allocation_json(each) for each in one.not_published],
            }
            for one in found.pools
        ],
        "poolsNotPublished": [
            {"pool": each.pool, **_allocation_json(each)} for each in found.stray
        ],
        "refused": [{"pod": one.pod, "why": one.why} for one in found.refused],
    }
    return json.dumps(document, indent=2) + "\n"


def _node(one: PoolUsage) -> str:
    return one.pool.node or _NONE


def _numbers(one: ResourceUsage) -> Sequence[str]:
    """Return what is offered, and what of it is used, blocked and free: these add up to it."""
    offered, free = (_ANY if each is None else str(each) for each in (one.offered, one.free))
    return offered, str(one.used), _NONE if one.blocked is None else str(one.blocked), free


def _capacity_rows(found: ClusterUsage) -> Iterable[Sequence[str]]:
    for pool in found.pools:
        for each in pool.resources:
            for name, words in _WORDS.items():
                if name not in each.capacities:
                    continue
                there = each.capacities[name]
                amounts = (there.total, there.used, there.free, there.most)
                shown = (words(amount // _NANO) for amount in amounts)
                yield _node(pool), each.resource or _BY_CLAIM, name, *shown


def _allocated_rows(found: ClusterUsage) -> Iterable[Sequence[str]]:
    """Yield the titles and a row for each device; parts of devices with what they consume."""
    allocated = [(_node(pool), each) for pool in found.pools for each in pool.allocated]
    if not allocated:
        return
    has_parts = any(each.allocation.share_id for _, each in allocated)
    yield (*_WIDE_COLUMNS, _CONSUMES) if has_parts else _WIDE_COLUMNS
    for node, each in allocated:
        row = (
            node,
            each.device.name,
            each.device.resource or _BY_CLAIM,
            each.allocation.claim,
            ", ".join(each.allocation.users) or _NONE,
        )
        yield (*row, _consumption(each)) if has_parts else row


def _consumption(one: AllocatedDevice) -> str:
    """Return what a part of a device consumes; of a device that a claim has alone, nothing."""
    if one.allocation.share_id is None:
        return _NONE
    amounts = one.allocation.consumed
    said = [
        f"{name} {words(amounts[name] // _NANO)}"
        for name, words in _WORDS.items()
        if amounts.get(name)
    ]
    return ", ".join(said) or "nothing"


def _sections(found: ClusterUsage) -> dict[str, list[str]]:
    gone = [
        *((_node(pool), each) for pool in found.pools for each in pool.not_published),
        *((each.pool, each) for each in found.stray),
    ]
    return {
        "not counted": [
            f"{_place(pool)}: {pool.pool.problem}" + _still_allocated(pool)
            for pool in found.pools
            if pool.pool.problem is not None
        ],
        "tainted, so not free": [
            f"{_node(pool)} {device.name}: {', '.join(device.taints)}"
            for pool in found.pools
            if pool.pool.problem is None
            for device in pool.tainted
        ],
        "allocated, but no longer published": [
            f"{where} {each.device}: claim {each.claim}" for where, each in gone
        ],
        "have devices and do not start": [f"pod {one.pod}: {one.why}" for one in found.refused],
        "without devices": [
            _place(pool) for pool in found.pools if pool.pool.problem is None and not pool.resources
        ],
    }


def _place(one: PoolUsage) -> str:
    return one.pool.node or f"pool {one.pool.name}"


def _still_allocated(one: PoolUsage) -> str:
    return f" (devices in use: {len(one.allocated)})" if one.allocated else ""


def _allocation_json(one: Allocation) -> dict[str, object]:
    return {
        "device": one.device,
        "claim": one.claim,
        "usedBy": one.users,
        "shareID": one.share_id,
        "consumed": {name: amount // _NANO for name, amount in one.consumed.items()},
    }


def _capacity_json(one: CapacityUsage) -> dict[str, int]:
    """Return a capacity in whole units: bytes of memory, percent of SMs, else a count."""
    return {
        "offered": one.total // _NANO,
        "used": one.used // _NANO,
        "free": one.free // _NANO,
        "mostOnOneDevice": one.most // _NANO,
    }
