"""How many devices of each resource name a node offers, how many are used, how many are free.

In: pools, and the devices that claims have. Out: numbers for each node and resource name that add
up, what is used and free of capacities that several claims consume, and everything that is not
counted. The scheduler takes the first device that is not allocated, has no taint that keeps claims
away, and whose counters are all left (KEP-4815). A device that several claims can have is allocated
again as long as capacity is left, and takes its counters once (KEP-5075).

The unit of a line is a pod that asks only for this resource name, for one device and none of its
capacities: `offered` and `free` are how many such pods would get one, and `used` is by how many the
existing claims on these devices reduce that. Names that share GPUs share them here, too: lines do
not add up. Pure, and linear in devices and claims.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from dra_driver.admin.api.allocations import Allocation
from dra_driver.admin.api.refusals import Refusal
from dra_driver.admin.api.slices import Amounts, Device
from dra_driver.admin.cluster import consumption
from dra_driver.admin.cluster.consumption import NOTHING, CapacityUsage
from dra_driver.admin.explain.allocated import AllocatedState
from dra_driver.admin.explain.pools import Pool
from dra_driver.admin.explain.search import counters_left
from dra_driver.devices.names import DRIVER_NAME


class ResourceUsage(Struct, frozen=True, kw_only=True):
    """The devices of a pool that serve one resource name, in numbers.

    Attributes:
        resource: the extended resource name; None for devices that only claims get.
        offered: how many can be allocated if nothing is, including tainted ones; None for any
            number, of devices that several claims can have.
        used: how many are allocated; for a device that several claims can have, how many pods
            without a capacity request would have what they have, or the number of parts if
            `offered` is any number.
        free: how many more can be allocated now; None as for `offered`.
        capacities: what claims consume of devices that several can have, by name.
    """

    resource: str | None
    offered: int | None
    used: int
    free: int | None
    parts: int = 0
    capacities: Mapping[str, CapacityUsage] = {}

    @property
    def blocked(self) -> int | None:
        """How many are neither used nor free: tainted, or used under other names."""
        return None if self.offered is None else self.offered - self.used - (self.free or 0)


class AllocatedDevice(Struct, frozen=True, kw_only=True):
    """A device that a claim has, and the resource name that it serves; None if unknown or none."""

    resource: str | None
    allocation: Allocation


class PoolUsage(Struct, frozen=True, kw_only=True):
    """The usage of a pool.

    Attributes:
        node: the node whose devices these are; empty if it is no single one.
        resources: one entry for each resource name, in order; none if the pool has a problem.
        allocated: the devices that claims have, in the order of the claims.
        not_published: what claims have that the pool does not contain any more. It does not count
            as used, because the scheduler does not count its use of the hardware either.
    """

    node: str
    pool: Pool
    resources: tuple[ResourceUsage, ...]
    allocated: tuple[AllocatedDevice, ...]
    not_published: tuple[Allocation, ...]

    @property
    def tainted(self) -> tuple[Device, ...]:
        """The devices that a taint keeps from new claims."""
        return tuple(device for device in self.pool.devices if closing_taints(device))


class ClusterUsage(Struct, frozen=True, kw_only=True):
    """The usage of all pools.

    Attributes:
        stray: what claims have of pools that are not published at all.
        refused: pods that have devices and do not start.
    """

    pools: tuple[PoolUsage, ...]
    stray: tuple[Allocation, ...]
    refused: tuple[Refusal, ...] = ()


def closing_taints(device: Device) -> tuple[str, ...]:
    """Return the taints that keep new claims away, as kubectl writes them."""
    return tuple(str(taint) for taint in device.taints if taint.blocks)


def resource_of(device: Device) -> str | None:
    """Return the extended resource name that a device serves, by its attributes.

    A share names it. A whole GPU or MIG device that is divided into shares serves none: only a
    claim for its class gets it.
    """
    kind, profile, name, shared_as = (
        str(device.attribute(f"{DRIVER_NAME}/{name}") or "")
        for name in ("type", "profile", "resourceName", "sharedAs")
    )
    if shared_as or name:
        return None if shared_as else name
    names = {"gpu": "nvidia.com/gpu", "mig": f"nvidia.com/mig-{profile.replace('+', '.')}"}
    return names.get(kind)


def usage_of(pools: Iterable[tuple[str, Pool]], allocations: Iterable[Allocation]) -> ClusterUsage:
    """Return what is offered, used and free of these pools, each with its node."""
    by_pool: dict[str, list[Allocation]] = {}
    for allocation in sorted(allocations, key=lambda each: (each.claim, each.device)):
        by_pool.setdefault(allocation.pool, []).append(allocation)
    pools = list(pools)
    # If two nodes use one pool name, what is allocated counts for the node of that name.
    own = {
        pool.name: node for node, pool in sorted(pools, key=lambda each: each[0] == each[1].name)
    }
    used = tuple(
        _usage_of_pool(node, pool, by_pool.pop(pool.name, []) if own[pool.name] == node else [])
        for node, pool in pools
    )
    return ClusterUsage(pools=used, stray=tuple(each for own in by_pool.values() for each in own))


def _usage_of_pool(node: str, pool: Pool, allocations: list[Allocation]) -> PoolUsage:
    serves = {device.id.device: resource_of(device) for device in pool.devices}
    # The content of an incomplete pool is not known, and the scheduler uses nothing of it.
    known = [each for each in allocations if pool.fault or each.device in serves]
    return PoolUsage(
        node=node,
        pool=pool,
        resources=_resources(pool, AllocatedState.by(allocations)),
        allocated=tuple(
            AllocatedDevice(resource=serves.get(each.device), allocation=each) for each in known
        ),
        not_published=tuple(each for each in allocations if each not in known),
    )


def _resources(pool: Pool, state: AllocatedState) -> tuple[ResourceUsage, ...]:
    by_resource: dict[str | None, list[Device]] = {}
    for device in pool.devices:
        by_resource.setdefault(resource_of(device), []).append(device)
    left = counters_left(pool, state)
    return tuple(
        _usage_of_resource(resource, devices, pool.counters, left, state)
        for resource, devices in sorted(by_resource.items(), key=lambda entry: entry[0] or "~")
    )


def _usage_of_resource(
    resource: str | None,
    devices: list[Device],
    counters: Amounts,
    left: Amounts,
    state: AllocatedState,
) -> ResourceUsage:
    offered = _given_out(devices, counters, NOTHING)
    free = _given_out((each for each in devices if not closing_taints(each)), left, state)
    used, more = sum(consumption.used(state, device) for device in devices), _room(free, state)
    most = _room(offered, NOTHING)
    return ResourceUsage(
        resource=resource,
        # First fit may find fewer than there are; there are at least as many as claims have.
        offered=None if most is None else max(most, used + (more or 0)),
        used=used,
        free=more,
        parts=sum(consumption.count(state, device) for device in devices),
        capacities=consumption.capacities(
            state,
            (device for device in devices if device.shared),
            offered=offered,
            open_to=free,
        ),
    )


def _given_out(devices: Iterable[Device], counters: Amounts, state: AllocatedState) -> list[Device]:
    """Return which of these devices can be allocated one after the other, first fit.

    If several claims can have a device and some do, its counters are already taken.
    """
    left = dict(counters)
    fitting = []
    for device in devices:
        if consumption.is_closed(state, device):
            continue
        if not state.has(device.id):
            if any(left[counter] < amount for counter, amount in device.consumes.items()):
                continue
            for counter, amount in device.consumes.items():
                left[counter] -= amount
        fitting.append(device)
    return fitting


def _room(devices: Iterable[Device], state: AllocatedState) -> int | None:
    """Return how many times these devices can be allocated; None: any number of times."""
    rooms = [consumption.room(state, device) for device in devices]
    return None if None in rooms else sum(room for room in rooms if room is not None)
