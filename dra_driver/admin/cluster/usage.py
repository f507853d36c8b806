"""How many devices of each resource name a node offers, how many are used, how many are free.

In: pools, and the devices that claims have. Out: numbers for each node and resource name that add
up, what is used and free of capacities that several claims consume, and everything that is not
counted. The scheduler takes the first device that nobody has, that no taint keeps away and whose
counters are all left (KEP-4815). A device that several claims can have is allocated again as long
as capacity is left, and takes its counters once (KEP-5075).

The unit of a line is a pod that asks only for this resource name, for one device and none of its
capacities: `offered` and `free` are how many such pods would get one, and `used` is by how many the
existing claims on these devices reduce that. Names that share GPUs share them here, too: lines do
not add up. Pure, and linear in devices and claims.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from dra_driver.admin.api.allocations import Allocation
from dra_driver.admin.api.refusals import Refusal
from dra_driver.admin.api.slices import Amounts, CounterId
from dra_driver.admin.cluster.consumption import NOTHING_CONSUMED, CapacityUsage, Consumed
from dra_driver.admin.cluster.pools import Device, Pool


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
    """A published device that a claim has."""

    device: Device
    allocation: Allocation


class PoolUsage(Struct, frozen=True, kw_only=True):
    """The usage of a pool.

    Attributes:
        resources: one entry for each resource name, in order; none if the pool has a problem.
        allocated: the devices that claims have, in the order of the claims.
        not_published: what claims have that the pool does not contain any more. It does not count
            as used, because the scheduler does not count its use of the hardware either.
    """

    pool: Pool
    resources: tuple[ResourceUsage, ...]
    allocated: tuple[AllocatedDevice, ...]
    not_published: tuple[Allocation, ...]

    @property
    def tainted(self) -> tuple[Device, ...]:
        """The devices that a taint keeps from new claims."""
        return tuple(device for device in self.pool.devices if device.taints)


class ClusterUsage(Struct, frozen=True, kw_only=True):
    """The usage of all pools.

    Attributes:
        stray: what claims have of pools that are not published at all.
        refused: pods that have devices and do not start.
    """

    pools: tuple[PoolUsage, ...]
    stray: tuple[Allocation, ...]
    refused: tuple[Refusal, ...] = ()


def usage_of(pools: Iterable[Pool], allocations: Iterable[Allocation]) -> ClusterUsage:
    """Return what is offered, used and free of these pools."""
    by_pool: dict[str, list[Allocation]] = {}
    for allocation in sorted(allocations, key=lambda each: (each.claim, each.device)):
        by_pool.setdefault(allocation.pool, []).append(allocation)
    pools = list(pools)
    # If two nodes use a pool's name, what is allocated counts for the node of that name.
    own = {pool.name: pool for pool in sorted(pools, key=lambda pool: pool.node == pool.name)}
    used = tuple(
        _usage_of_pool(pool, by_pool.pop(pool.name, []) if own[pool.name] is pool else [])
        for pool in pools
    )
    return ClusterUsage(pools=used, stray=tuple(each for own in by_pool.values() for each in own))


def _usage_of_pool(pool: Pool, allocations: list[Allocation]) -> PoolUsage:
    known = {device.name: device for device in pool.devices}
    allocated = [
        AllocatedDevice(device=known[allocation.device], allocation=allocation)
        for allocation in allocations
        if allocation.device in known
    ]
    missing = [allocation for allocation in allocations if allocation.device not in known]
    # Nobody knows what an incomplete pool will hold, and the scheduler counts nothing of it.
    whole = pool.problem is None
    return PoolUsage(
        pool=pool,
        resources=_resources(pool, Consumed.by((got.device, got.allocation) for got in allocated))
        if whole
        else (),
        allocated=tuple(allocated),
        not_published=tuple(missing) if whole else (),
    )


def _resources(pool: Pool, consumed: Consumed) -> tuple[ResourceUsage, ...]:
    by_resource: dict[str | None, list[Device]] = {}
    left = dict(pool.counters)
    for device in pool.devices:
        by_resource.setdefault(device.resource, []).append(device)
        if consumed.is_taken(device):
            _take(left, device.consumes)
    return tuple(
        _usage_of_resource(resource, devices, pool.counters, left, consumed)
        for resource, devices in sorted(by_resource.items(), key=lambda entry: entry[0] or "~")
    )


def _usage_of_resource(
    resource: str | None,
    devices: list[Device],
    counters: Amounts,
    left: Amounts,
    consumed: Consumed,
) -> ResourceUsage:
    offered = _given_out(devices, counters, NOTHING_CONSUMED)
    free = _given_out((device for device in devices if not device.taints), left, consumed)
    used, more = sum(map(consumed.used, devices)), _room(free, consumed)
    most = _room(offered, NOTHING_CONSUMED)
    return ResourceUsage(
        resource=resource,
        # First fit may find fewer than there are; there are at least as many as claims have.
        offered=None if most is None else max(most, used + (more or 0)),
        used=used,
        free=more,
        parts=sum(map(consumed.count, devices)),
        capacities=consumed.capacities(
            (device for device in devices if device.allows_multiple),
            offered={device.name for device in offered},
            open_to={device.name for device in free},
        ),
    )


def _given_out(devices: Iterable[Device], counters: Amounts, consumed: Consumed) -> list[Device]:
    """Return which of these devices can be allocated one after the other, first fit.

    If several claims can have a device, and some have it, its counters are taken already.
    """
    left = dict(counters)
    fitting = []
    for device in devices:
        if consumed.is_closed(device):
            continue
        if not consumed.is_taken(device):
            if not _fits(device.consumes, left):
                continue
            _take(left, device.consumes)
        fitting.append(device)
    return fitting


def _room(devices: Iterable[Device], consumed: Consumed) -> int | None:
    """Return how many times these devices can be allocated; None: any number of times."""
    rooms = [consumed.room(device) for device in devices]
    return None if None in rooms else sum(room for room in rooms if room is not None)


def _fits(wanted: Amounts, left: Amounts) -> bool:
    return all(left[counter] >= amount for counter, amount in wanted.items())


def _take(left: dict[CounterId, int], wanted: Amounts) -> None:
    for counter, amount in wanted.items():
        left[counter] -= amount
