"""Shares: several claims have parts of one device, and use it in one way.

Of equal parts the node's config says which way, of consumable shares the first claim.

In: shares that a claim got of divided devices. Out: for MPS the claim's membership in the domain
that serves the device (mps/members.py), and edits that make its containers clients within their
share; the first member brings a domain up and the last one ends it. Time-slicing divides neither
memory nor SMs. What keeps memory to its share is chosen by sharing/share_memory.py; what is said
here of MPS's limits of memory holds where that is MPS.

Where a request has one equal share only, all tenants have the same limits, and the daemon keeps
them. Where shares may be combined, or are as large as was asked for, tenants differ, and a client's
limits are in its environment: they hold for programs that leave it as it is.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from dra_driver.cdi.model import Edits
from dra_driver.devices.kinds import DeviceKind, GpuPart
from dra_driver.devices.model import Gpu, GpuUuid, MigDevice
from dra_driver.devices.shares import (
    Division,
    Share,
    ShareStrategy,
    memory_mib,
    memory_of,
    percentage,
)
from dra_driver.errors import DeviceError, StateError
from dra_driver.mps.client_edits import client_edits
from dra_driver.mps.domain import (
    Domain,
    DomainDevice,
    DomainId,
    domain_json,
    domain_of,
    shared_domain,
)
from dra_driver.mps.members import SharedDomains
from dra_driver.mps.requests import DomainRequests
from dra_driver.sharing.base import (
    ComputeModes,
    Description,
    DeviceKey,
    Group,
    ShareUnit,
    Sharing,
    SharingPlan,
    key_uuid,
)
from dra_driver.sharing.container_limits import (
    changes_of,
    container_limits,
    limits_of_containers,
    words_for,
)
from dra_driver.sharing.enforcement import (
    KEY,
    LIMITS_SINCE,
    Backend,
    DividedDevice,
    MemoryPart,
    part_json,
    part_of,
)
from dra_driver.sharing.mps import GONE_SECONDS
from dra_driver.sharing.share_limits import (
    ShareLimits,
    described_size,
    key_of,
    limits_json,
    limits_of,
    memory_by_gpu,
    uuid_of,
)
from dra_driver.sharing.share_memory import ShareMemory

NAME = "Shares"

_UNREADABLE = "the record's plan for shares cannot be read"

_DEFAULT_MODE = 0
_MODES: Mapping[int, str] = MappingProxyType(
    {1: "EXCLUSIVE_THREAD", 2: "PROHIBITED", 3: "EXCLUSIVE_PROCESS"}
)


class Shares(Sharing):
    """The strategy of shares: one plan for each domain, and one for each time-sliced device.

    A daemon may take `ready_seconds` to be ready, within a call's deadline.
    """

    survives_reboot = True

    def __init__(
        self,
        requests: DomainRequests,
        members: SharedDomains,
        modes: ComputeModes,
        clock: Callable[[], float],
        *,
        memory: ShareMemory,
        ready_seconds: float,
    ) -> None:
        self._requests = requests
        self._members = members
        self._modes = modes
        self._clock = clock
        self._memory = memory
        self._ready_seconds = ready_seconds

    def plan(self, groups: Sequence[Group], deadline: float) -> tuple[SharingPlan, ...]:  # noqa: ARG002 (a Sharing)
        """Return a plan for each domain, and for each time-sliced device."""
        served: dict[str, list[ShareUnit]] = {}
        for group in groups:
            for unit in group.shares:
                served.setdefault(_server_name(unit), []).append(unit)
        choices = {
            name: self._memory.choose_for([*map(_divided, units)]) for name, units in served.items()
        }

        def by(unit: ShareUnit) -> Backend:
            return choices[_server_name(unit)].by

        limits = limits_of(groups, lambda unit: by(unit) is not Backend.NOTHING)
        of_claim = memory_by_gpu([unit for units in served.values() for unit in units], limits, by)
        parts = {
            name: self._memory.part(
                groups[0],
                choices[name],
                [*map(_divided, units)],
                mib=memory_by_gpu(units, limits, by),
                of_claim=of_claim,
            )
            for name, units in served.items()
        }
        return tuple(self._plan(name, units, limits, parts[name]) for name, units in served.items())

    def _plan(
        self,
        name: str,
        units: Sequence[ShareUnit],
        limits: Mapping[DeviceKey, ShareLimits],
        part: MemoryPart,
    ) -> SharingPlan:
        changes: dict[str, object] = {
            "claim": part.claim,
            "strategy": str(units[0].share.slot.strategy),
            "shares": {key_of(unit): limits_json(limits[key_of(unit)]) for unit in units},
            KEY: part_json(part),
        }
        gpus = tuple(sorted(part.mib))
        if units[0].share.slot.strategy is ShareStrategy.MPS:
            changes["domain"] = domain_json(_domain(name, units, part.of_device))
            by_mps = part.by is Backend.MPS
            found = container_limits(units, limits, memory_in_environment=by_mps)
            changes |= changes_of(found, limits)
            gpus = _together(units[0]) or (units[0].gpu.uuid,)
        else:
            for unit in units:
                self._check_mode(unit)
        return SharingPlan(
            strategy=NAME, gpus=gpus, places=tuple(map(_part, units)), changes=changes
        )

    def edits(self, plan: SharingPlan) -> Mapping[DeviceKey, Edits]:
        """Return what makes containers clients, with limits where the domain has not the same."""
        domain, part = _domain_of(plan), memory_part(plan)
        memory = self._memory.groups.edits(part)
        if domain is None:
            return dict.fromkeys(limits_in(plan), memory) if memory != Edits() else {}
        paths = self._requests.paths(domain.id)
        of_requests = limits_in(plan)
        with _reading():
            limits = limits_of_containers(
                plan.changes, of_requests, memory_in_environment=part.by is Backend.MPS
            )
        own = {device.uuid: device.pinned_memory_mib for device in domain.devices}
        return {
            key: client_edits(
                paths,
                active_thread_percentage=_below(
                    one.active_thread_percentage, domain.active_thread_percentage
                ),
                pinned_memory_mib={
                    uuid: mib
                    for uuid, mib in one.memory_mib.items()
                    if _below(mib, own.get(uuid)) is not None
                },
            )
            + memory
            for key, one in limits.items()
        }

    @staticmethod
    def describe(plan: SharingPlan, device: DeviceKey) -> Description:
        """Return the share, the limits of its containers, and what enforces them."""
        limits, domain = limits_in(plan).get(device), _domain_of(plan)
        if limits is None:
            raise StateError(f"the record's plan for shares does not know {device}")
        settings, words = described_size(limits)
        if limits.active_thread_percentage is not None:
            settings["activeThreadPercentage"] = limits.active_thread_percentage
            words.append(f"{limits.active_thread_percentage} % of threads")
        part = memory_part(plan)
        memory = None if part.by is Backend.NOTHING else limits.memory_mib.get(key_uuid(device))
        if memory is not None:
            settings["pinnedMemoryMiB" if part.by is Backend.MPS else "memoryMiB"] = memory
            words.append(f"{memory} MiB")
        words += words_for(plan.changes, device)
        enforced = part.choice.words()
        settings["enforcedBy"] = enforced
        if memory is None and part.by is Backend.CONTROL_GROUPS:
            words.append("no limit of memory")
        else:
            words.append(f"enforced by {enforced}" if enforced else "nothing limits memory")
        if part.why:
            settings["whyNotBetter"] = part.why
        return Description(
            settings=settings,
            words=", ".join(words),
            domain=None if domain is None else domain.id,
        )

    def apply(self, plan: SharingPlan, deadline: float) -> None:  # noqa: ARG002 (a Sharing)
        """Limit memory, and join the domain."""
        self._memory.groups.apply(memory_part(plan))
        domain = _domain_of(plan)
        if domain is not None:
            self._members.join(domain, _claim(plan))

    def ensure(self, plan: SharingPlan) -> None:
        """See to it that the claim has joined, and set memory limits again that are gone."""
        domain = _domain_of(plan)
        if domain is not None:
            self._members.join(domain, _claim(plan))
        self._memory.groups.ensure(memory_part(plan))

    def wait_ready(self, plan: SharingPlan, deadline: float, given_up: Callable[[], bool]) -> None:
        """Wait until the domain's daemon serves clients; `apply` and `ensure` limit memory."""
        domain = _domain_of(plan)
        if domain is not None:
            end = min(deadline, self._clock() + self._ready_seconds)
            self._requests.wait_ready(domain, end, given_up)

    def let_go(self, plan: SharingPlan, deadline: float) -> None:
        """Leave the domain, and wait for its end if nobody else is in it."""
        domain = _domain_of(plan)
        if domain is not None:
            self._leave([domain.id], _claim(plan), deadline)

    def undo(self, plan: SharingPlan, deadline: float) -> None:  # noqa: ARG002 (a Sharing)
        """Leave the domain, and take limits back."""
        try:
            self.let_go(plan, self._clock())
        finally:
            self._memory.groups.undo(memory_part(plan))

    def claims(self) -> frozenset[str]:
        """Return the claims that have joined a domain."""
        return self._members.claims()

    def sweep(self, claim: str, deadline: float) -> None:
        """Leave all domains that a claim has joined."""
        self._leave(sorted(self._members.joined(claim)), claim, deadline)

    def _leave(self, domains: Sequence[DomainId], claim: str, deadline: float) -> None:
        ending = [domain for domain in domains if self._members.leave(domain, claim)]
        end = min(deadline, self._clock() + GONE_SECONDS)
        for domain in ending:
            self._requests.wait_gone(domain, end)

    def _check_mode(self, unit: ShareUnit) -> None:
        """Check that a GPU lets a second process in."""
        if not isinstance(unit.share.of, Gpu):
            return  # in MIG mode there are no compute modes
        mode = self._modes.compute_mode(unit.gpu.uuid)
        if mode not in (None, _DEFAULT_MODE):
            name = _MODES.get(mode or 0, str(mode))
            raise DeviceError(
                f"the compute mode of {unit.gpu.uuid} is {name}, in which processes cannot share "
                f"it: set it back (nvidia-smi -i {unit.gpu.index} -c DEFAULT)"
            )


def limits_in(plan: SharingPlan) -> dict[DeviceKey, ShareLimits]:
    """Return a plan's limits by share. Raises StateError if this strategy did not make the plan."""
    with _reading():
        shares: Mapping[str, Any] = plan.changes["shares"]  # type: ignore[assignment]  # what is wrong raises below
        return {
            DeviceKey(key): ShareLimits(
                taken=int(value["taken"]),
                count=None if value["of"] is None else int(value["of"]),
                consumed_memory_mib=int(value.get("consumedMemoryMiB", 0)),
                consumed_cores=int(value.get("consumedCores", 0)),
                active_thread_percentage=value["activeThreadPercentage"],
                memory_mib=dict(value["memoryMiB"]),
            )
            for key, value in shares.items()
        }


def _below(limit: int | None, of_daemon: int | None) -> int | None:
    """Return a limit if it is below that of the daemon, which no client can raise."""
    return limit if limit is not None and (of_daemon is None or limit < of_daemon) else None


def memory_part(plan: SharingPlan) -> MemoryPart:
    """Return what a plan says of memory. Raises StateError if this strategy did not make it."""
    with _reading():
        part = part_of(plan)
    if part is not None:
        return part
    # Written before other backends than MPS were known.
    limits = limits_in(plan).values()
    by = Backend.MPS if any(one.memory_mib for one in limits) else Backend.NOTHING
    return MemoryPart(by=by, of_device=by, claim=_claim(plan))


def _claim(plan: SharingPlan) -> str:
    claim = plan.changes.get("claim")
    if not isinstance(claim, str):
        raise StateError(f"{_UNREADABLE}: it names no claim")
    return claim


def _domain_of(plan: SharingPlan) -> Domain | None:
    value = plan.changes.get("domain")
    with _reading():
        return None if value is None else domain_of(value)


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, StateError) as error:
        raise StateError(f"{_UNREADABLE}: {error}") from error


def _part(unit: ShareUnit) -> GpuPart:
    of = unit.share.of
    return GpuPart(
        gpu=unit.gpu.uuid,
        placement=None if isinstance(of, Gpu) else of.placement,
        share=unit.share.slot,
    )


def _server_name(unit: ShareUnit) -> str:
    """Return the name of what serves a share's device: the same for devices served together."""
    share = unit.share
    if isinstance(share, Share) and share.division.together:
        return share.division.served_as.replace("/", ".")
    return uuid_of(unit)


def _together(unit: ShareUnit) -> tuple[GpuUuid, ...]:
    """Return the GPUs that one server serves together with a share's device, if there are some."""
    return unit.share.division.together if isinstance(unit.share, Share) else ()


def _same_for_all(unit: ShareUnit) -> Division | None:
    """Return the division whose tenants all have one share, and so the same limits."""
    if not isinstance(unit.share, Share) or unit.share.division.combines:
        return None
    return unit.share.division


def _divided(unit: ShareUnit) -> DividedDevice:
    return DividedDevice(
        gpu=unit.gpu,
        is_mig=not isinstance(unit.share.of, Gpu),
        strategy=unit.share.slot.strategy,
    )


def _domain(name: str, units: Sequence[ShareUnit], by: Backend) -> Domain:
    """Return the domain that serves the devices of these shares, the same for every tenant."""
    unit = units[0]
    together, division = _together(unit), _same_for_all(unit)
    has_limits = unit.gpu.cuda_compute_capability >= LIMITS_SINCE
    if together:
        devices = tuple(DomainDevice(uuid=uuid) for uuid in together)
        return Domain(id=shared_domain(name), devices=devices, multi_user=has_limits)
    memory: int | None = None
    percent: int | None = None
    if has_limits and division is not None:
        total = memory_of(unit.share.of)
        if by is Backend.MPS and total is not None:
            memory = memory_mib(total, 1, division.count)
        percent = None if division.free_compute else percentage(1, division.count)
    kind = DeviceKind.MIG if isinstance(unit.share.of, MigDevice) else DeviceKind.GPU
    device = DomainDevice(uuid=uuid_of(unit), kind=kind, pinned_memory_mib=memory)
    return Domain(
        id=shared_domain(name),
        devices=(device,),
        active_thread_percentage=percent,
        multi_user=has_limits,
    )
