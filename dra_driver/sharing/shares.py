"""Shares: several claims have parts of one device, and all use it by the same strategy.

For equal shares, the node's share config chooses the strategy; for consumable shares, the first
claim does.

In: the shares of divided devices that a claim got. Out: for each device a step that limits the
claim's memory. For MPS there is also a step that joins the device's domain (sharing/mps.py). The
first member starts a domain, and the last one ends it. Time-slicing divides neither memory nor SMs.
sharing/limiters.py says what limits memory; the next paragraph is about MPS, if that limits it.

If each request has only one equal share, all tenants of the device have the same limits, and they
are the defaults of its daemon, which no client can raise. If a request can have several shares, or
parts have different sizes, tenants have different limits. A daemon has one default for all clients,
so these are in the environment of each client, and a program that changes it can evade them.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from dra_driver.devices.device import Base, DeviceKey, Mig, Whole, memory_of
from dra_driver.devices.model import Gpu
from dra_driver.devices.shares import LIMITS_SINCE, ShareStrategy, memory_mib, percentage
from dra_driver.errors import DeviceError
from dra_driver.mps.domain import shared_domain
from dra_driver.sharing.base import ComputeModes, Group, Unit
from dra_driver.sharing.limiters import Limited, Limiter, limited
from dra_driver.sharing.memory_groups import MemoryGroups, only_pod
from dra_driver.sharing.share_limits import grouped, limits_of, memory_of_claim, share_of
from dra_driver.sharing.steps import (
    ClientLimits,
    JoinDomain,
    ShareLimits,
    SharingStep,
    UseShares,
)

_DEFAULT_MODE = 0
_MODES: Mapping[int, str] = MappingProxyType(
    {1: "EXCLUSIVE_THREAD", 2: "PROHIBITED", 3: "EXCLUSIVE_PROCESS"}
)


class ShareMemory:
    """Tells what limits the memory of shares on this node. For any thread.

    `groups` limits it by control groups; `sees_processes` is whether this process can see how much
    memory the processes of containers have.
    """

    def __init__(self, groups: MemoryGroups, *, sees_processes: bool = False) -> None:
        self.groups = groups
        self.sees_processes = sees_processes

    def limited(
        self, gpu: Gpu, base: Base, strategy: ShareStrategy, *, has_size: bool = False
    ) -> Limited:
        """Return what limits the memory of a device's shares, for its next tenant.

        `has_size`: it is known how much memory a share has. Raises DeviceError or TransientError if
        the GPU does not report what it can do, StateError if the records cannot be read.
        """
        # Control groups do not limit MIG devices, so all tenants of one are limited alike anyway.
        tenants = [] if isinstance(base, Mig) else self.groups.tenants(gpu.uuid)
        return limited(
            gpu,
            strategy,
            has_size=has_size,
            why_no_groups=self.groups.why_not(base),
            sees_processes=self.sees_processes,
            tenants={tenant.limited_by for tenant in tenants},
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
            yield _join(claim, units, limits, limits_memory=limited.by is Limiter.MPS)

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


def _join(
    claim: Group,
    units: Sequence[Unit],
    limits: Mapping[DeviceKey, ShareLimits],
    *,
    limits_memory: bool,
) -> JoinDomain:
    """Return the step that joins the domain of a share's device: the same for every tenant."""
    gpu, device = units[0].gpu, units[0].device
    has_limits = gpu.cuda_compute_capability >= LIMITS_SINCE
    memory: int | None = None
    percent: int | None = None
    if has_limits and (division := device.division) is not None and not division.combines:
        # Every tenant has one share, so all have the same limits.
        total = memory_of(gpu, device.base)
        if limits_memory and total is not None:
            memory = memory_mib(total, 1, division.count)
        percent = None if division.free_compute else percentage(1, division.count)
    return JoinDomain(
        devices=tuple(unit.device for unit in units),
        domain=shared_domain(units[0].uuid),
        claim=claim.claim,
        limits=tuple(
            ClientLimits(
                daemon_memory_mib=memory,
                active_thread_percentage=limits[unit.key].active_thread_percentage,
                memory_mib=limits[unit.key].memory_mib if limits_memory else None,
            )
            for unit in units
        ),
        active_thread_percentage=percent,
        multi_user=has_limits,
        may_take_turns=has_limits,
    )
