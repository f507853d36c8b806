"""Shares: several claims have parts of one device, and all use it by the same strategy.

For equal shares, the node's share config chooses the strategy; for consumable shares, the first
claim does.

In: the shares of divided devices that a claim got. Out: for each device a step that limits the
claim's memory. For MPS there is also a step that joins the device's domain (mps/members.py), with
edits that make containers its clients, within their share. The first member starts a domain, and
the last one ends it. Time-slicing divides neither memory nor SMs. sharing/limiters.py says what
limits memory; the next paragraph is about MPS, if that limits it.

If each request has only one equal share, all tenants of the device have the same limits, and they
are the defaults of its daemon, which no client can raise. If a request can have several shares, or
parts have different sizes, tenants have different limits. A daemon has one default for all clients,
so these are in the environment of each client, and a program that changes it can evade them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from dra_driver.cdi.model import Edits
from dra_driver.devices.device import DeviceKey, Whole, memory_of
from dra_driver.devices.shares import LIMITS_SINCE, ShareStrategy, memory_mib, percentage
from dra_driver.errors import DeviceError
from dra_driver.mps.domain import Domain, DomainDevice, DomainId, shared_domain
from dra_driver.mps.members import SharedDomains
from dra_driver.mps.requests import DomainRequests
from dra_driver.sharing.base import ComputeModes, Group, Unit
from dra_driver.sharing.limiters import Limiter
from dra_driver.sharing.memory_groups import only_pod
from dra_driver.sharing.mps import DomainDoer, client_edits
from dra_driver.sharing.share_limits import grouped, limits_of, memory_of_claim, share_of
from dra_driver.sharing.share_memory import ShareMemory
from dra_driver.sharing.steps import (
    ContainerLimits,
    JoinDomain,
    ShareLimits,
    SharingStep,
    UseShares,
)

_DEFAULT_MODE = 0
_MODES: Mapping[int, str] = MappingProxyType(
    {1: "EXCLUSIVE_THREAD", 2: "PROHIBITED", 3: "EXCLUSIVE_PROCESS"}
)


class Shares:
    """The strategy of shares: two steps for each device under MPS, one for each time-sliced one."""

    def __init__(self, memory: ShareMemory, modes: ComputeModes) -> None:
        self._memory = memory
        self._modes = modes

    def plan(self, groups: Sequence[Group], deadline: float) -> tuple[SharingStep, ...]:  # noqa: ARG002 (a Planner)
        """Return the steps for each device that the claim has shares of."""
        limits = limits_of(groups)
        shares = (unit for group in groups for unit in group.shares)
        devices = grouped(shares, lambda unit: unit.uuid)
        return tuple(step for units in devices for step in self._steps(groups[0], units, limits))

    def _steps(
        self, claim: Group, units: Sequence[Unit], limits: Mapping[DeviceKey, ShareLimits]
    ) -> Iterator[SharingStep]:
        gpu, base = units[0].gpu, units[0].device.base
        shares = [share_of(unit) for unit in units]
        strategy = shares[0].strategy
        has_size = all(share.has_memory for share in shares)
        limited = self._memory.limited(gpu, base, strategy, has_size=has_size)
        if strategy is not ShareStrategy.MPS:
            self._check_mode(units[0])
        memory = memory_of_claim(units, limits, limited.by)
        by_groups = limited.by is Limiter.CONTROL_GROUPS
        yield UseShares(
            devices=tuple(unit.device for unit in units),
            strategy=strategy,
            limits=tuple(limits[unit.key] for unit in units),
            limited_by=limited.by,
            why=limited.why,
            memory_mib=memory,
            pod=only_pod(claim) if by_groups and memory is not None else "",
        )
        if strategy is ShareStrategy.MPS:
            by_mps = limited.by is Limiter.MPS
            yield JoinDomain(
                devices=tuple(unit.device for unit in units),
                domain=_domain(units[0], limits_memory=by_mps),
                claim=claim.claim,
                clients={
                    unit.key: _client(unit, limits[unit.key], limits_memory=by_mps)
                    for unit in units
                },
            )

    def _check_mode(self, unit: Unit) -> None:
        """Check that a GPU accepts a second process."""
        if not isinstance(unit.device.base, Whole):
            return  # in MIG mode there are no compute modes
        mode = self._modes.compute_mode(unit.gpu.uuid)
        if mode not in (None, _DEFAULT_MODE):
            name = _MODES.get(mode or 0, str(mode))
            raise DeviceError(
                f"the compute mode of {unit.gpu.uuid} is {name}, in which processes cannot share "
                f"it: set it back (nvidia-smi -i {unit.gpu.index} -c DEFAULT)"
            )


class Memberships(DomainDoer[JoinDomain]):
    """Lets claims join the MPS domains that serve their shares, and leave them."""

    def __init__(
        self,
        requests: DomainRequests,
        members: SharedDomains,
        clock: Callable[[], float],
        *,
        ready_seconds: float,
    ) -> None:
        super().__init__(requests, clock, ready_seconds=ready_seconds)
        self._members = members

    def edits(self, step: JoinDomain) -> Mapping[DeviceKey, Edits]:
        """Return the edits that make containers clients, with limits below the domain's."""
        domain = step.domain
        paths = self._requests.paths(domain.id)
        own = {device.uuid: device.pinned_memory_mib for device in domain.devices}
        return {
            key: client_edits(
                paths,
                active_thread_percentage=_below(
                    client.active_thread_percentage, domain.active_thread_percentage
                ),
                pinned_memory_mib={
                    uuid: mib
                    for uuid, mib in client.memory_mib.items()
                    if _below(mib, own.get(uuid)) is not None
                },
            )
            for key, client in step.clients.items()
        }

    def ensure(self, step: JoinDomain) -> None:
        """Make sure that the claim has joined."""
        self._members.join(step.domain, step.claim)

    def undo(self, step: JoinDomain, deadline: float) -> None:
        """Leave the domain, and wait for its end if nobody else is in it."""
        self._leave([step.domain.id], step.claim, deadline)

    def claims(self) -> frozenset[str]:
        """Return the claims that have joined a domain."""
        return self._members.claims()

    def sweep(self, claim: str, deadline: float) -> None:
        """Leave all domains that a claim has joined."""
        self._leave(sorted(self._members.joined(claim)), claim, deadline)

    def _leave(self, domains: Sequence[DomainId], claim: str, deadline: float) -> None:
        ending = [domain for domain in domains if self._members.leave(domain, claim)]
        self._wait_gone(ending, deadline)


def _below(limit: int | None, of_daemon: int | None) -> int | None:
    """Return a limit if it is below the daemon's, which a client cannot raise; else None."""
    return limit if limit is not None and (of_daemon is None or limit < of_daemon) else None


def _client(unit: Unit, limits: ShareLimits, *, limits_memory: bool) -> ContainerLimits:
    memory = limits.memory_mib if limits_memory else None
    return ContainerLimits(
        active_thread_percentage=limits.active_thread_percentage,
        memory_mib={} if memory is None else {unit.uuid: memory},
    )


def _domain(unit: Unit, *, limits_memory: bool) -> Domain:
    """Return the MPS domain for the device of a share; it is the same for every tenant."""
    has_limits = unit.gpu.cuda_compute_capability >= LIMITS_SINCE
    division = unit.device.division
    memory: int | None = None
    percent: int | None = None
    if has_limits and division is not None and not division.combines:
        # Every tenant has one share, so all have the same limits.
        total = memory_of(unit.gpu, unit.device.base)
        if limits_memory and total is not None:
            memory = memory_mib(total, 1, division.count)
        percent = None if division.free_compute else percentage(1, division.count)
    device = DomainDevice(uuid=unit.uuid, kind=unit.device.kind, pinned_memory_mib=memory)
    return Domain(
        id=shared_domain(unit.uuid),
        devices=(device,),
        active_thread_percentage=percent,
        multi_user=has_limits,
    )
