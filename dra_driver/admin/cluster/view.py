"""What the cluster offers, as a table for people and as JSON for programs.

Below the numbers is what they do not include, and why. Pure.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from dra_driver.admin.api.allocations import Allocation
from dra_driver.admin.cluster.consumption import CapacityUsage
from dra_driver.admin.cluster.usage import (
    AllocatedDevice,
    ClusterUsage,
    PoolUsage,
    ResourceUsage,
    closing_taints,
)
from dra_driver.admin.output import aligned
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
"""The resource name shown for devices that serve none."""

_NONE = "-"
_ANY = "any"
"""Shown for any number."""

_NANO = 10**9
_MIB = 1024**2

_WORDS: Mapping[str, Callable[[int], str]] = MappingProxyType(
    {
        MEMORY: lambda amount: f"{amount // _MIB} MiB",
        CORES: lambda amount: f"{amount} %",
        SHARES: str,
    }
)
"""The capacities that people see, and in which form: only these limit a claim."""


def table(usage: ClusterUsage, *, wide: bool = False) -> str:
    """Return the usage for people; `wide` adds every allocated device with its claim and pods."""
    rows = [
        (_node(pool), each.resource or _BY_CLAIM, *_numbers(each))
        for pool in usage.pools
        for each in pool.resources
        if each.resource or each.parts  # others serve no resource name, and are not in use
    ]
    lines = aligned([_COLUMNS, *rows]) if rows else ["no devices are published"]
    if capacities := list(_capacity_rows(usage)):
        lines += ["", *aligned([_CAPACITY_COLUMNS, *capacities])]
    if wide and (allocated := list(_allocated_rows(usage))):
        lines += ["", *aligned(allocated)]
    for title, entries in _sections(usage).items():
        if entries:
            lines += ["", f"{title}:", *(f"  {entry}" for entry in entries)]
    return "\n".join(lines) + "\n"


def report(usage: ClusterUsage) -> str:
    """Return the usage as JSON, for programs."""
    document = {
        "nodes": [
            {
                "name": own.node or None,
                "pool": own.pool.name,
                "problem": own.pool.problem or None,
                "resources": [
                    {
                        "name": each.resource,
                        "offered": each.offered,
                        "used": each.used,
                        "blocked": each.blocked,
                        "free": each.free,
                        "parts": each.parts,
                        "capacities": {
                            name: _capacity_json(use) for name, use in each.capacities.items()
                        },
                    }
                    for each in own.resources
                ],
                "allocated": [
                    _allocation_json(each.allocation) | {"resource": each.resource}
                    for each in own.allocated
                ],
                "tainted": [
                    {"device": device.id.device, "taints": closing_taints(device)}
                    for device in own.tainted
                ],
                "notPublished": [_allocation_json(each) for each in own.not_published],
            }
            for own in usage.pools
        ],
        "poolsNotPublished": [
            {"pool": each.pool, **_allocation_json(each)} for each in usage.stray
        ],
        "refused": [{"pod": pod.pod, "why": pod.why} for pod in usage.refused],
    }
    return json.dumps(document, indent=2) + "\n"


def _node(usage: PoolUsage) -> str:
    return usage.node or _NONE


def _numbers(usage: ResourceUsage) -> Sequence[str]:
    """Return what is offered, and what of it is used, blocked and free: these add up to it."""
    offered, free = (_ANY if each is None else str(each) for each in (usage.offered, usage.free))
    return offered, str(usage.used), _NONE if usage.blocked is None else str(usage.blocked), free


def _capacity_rows(usage: ClusterUsage) -> Iterable[Sequence[str]]:
    for pool in usage.pools:
        for each in pool.resources:
            for name, words in _WORDS.items():
                if name not in each.capacities:
                    continue
                there = each.capacities[name]
                amounts = (there.total, there.used, there.free, there.most)
                shown = (words(amount // _NANO) for amount in amounts)
                yield _node(pool), each.resource or _BY_CLAIM, name, *shown


def _allocated_rows(usage: ClusterUsage) -> Iterable[Sequence[str]]:
    """Yield the titles and a row for each device; parts of devices with what they consume."""
    allocated = [(_node(pool), each) for pool in usage.pools for each in pool.allocated]
    if not allocated:
        return
    has_parts = any(each.allocation.share_id for _, each in allocated)
    yield (*_WIDE_COLUMNS, _CONSUMES) if has_parts else _WIDE_COLUMNS
    for node, each in allocated:
        row = (
            node,
            each.allocation.device,
            each.resource or _BY_CLAIM,
            each.allocation.claim,
            ", ".join(each.allocation.users) or _NONE,
        )
        yield (*row, _consumption(each)) if has_parts else row


def _consumption(given: AllocatedDevice) -> str:
    """Return what a part of a device consumes; empty for a device that a claim has alone."""
    if given.allocation.share_id is None:
        return _NONE
    amounts = given.allocation.consumed
    shown = [
        f"{name} {words(amounts[name] // _NANO)}"
        for name, words in _WORDS.items()
        if amounts.get(name)
    ]
    return ", ".join(shown) or "nothing"


def _sections(usage: ClusterUsage) -> dict[str, list[str]]:
    gone = [
        *((_node(pool), each) for pool in usage.pools for each in pool.not_published),
        *((each.pool, each) for each in usage.stray),
    ]
    return {
        "not counted": [
            f"{_place(pool)}: {pool.pool.problem}"
            + (f" (devices in use: {len(pool.allocated)})" if pool.allocated else "")
            for pool in usage.pools
            if pool.pool.fault
        ],
        "tainted, so not free": [
            f"{_node(pool)} {device.id.device}: {', '.join(closing_taints(device))}"
            for pool in usage.pools
            if not pool.pool.fault
            for device in pool.tainted
        ],
        "allocated, but no longer published": [
            f"{where} {each.device}: claim {each.claim}" for where, each in gone
        ],
        "have devices, but do not start": [f"pod {pod.pod}: {pod.why}" for pod in usage.refused],
        "without devices": [
            _place(pool) for pool in usage.pools if not pool.pool.fault and not pool.resources
        ],
    }


def _place(usage: PoolUsage) -> str:
    return usage.node or f"pool {usage.pool.name}"


def _allocation_json(allocation: Allocation) -> dict[str, object]:
    return {
        "device": allocation.device,
        "claim": allocation.claim,
        "usedBy": allocation.users,
        "shareID": allocation.share_id,
        "consumed": {name: amount // _NANO for name, amount in allocation.consumed.items()},
    }


def _capacity_json(usage: CapacityUsage) -> dict[str, int]:
    """Return a capacity in whole units: bytes of memory, percent of SMs, else a count."""
    return {
        "offered": usage.total // _NANO,
        "used": usage.used // _NANO,
        "free": usage.free // _NANO,
        "mostOnOneDevice": usage.most // _NANO,
    }
