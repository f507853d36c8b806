"""MPS: the CUDA programs of a claim's containers run on its GPUs at the same time.

In: devices under configs with limits. Out: one MPS domain for all whole GPUs of the claim, asked
for from the supervisor (mps/requests.py), and edits that make containers its clients. A process is
a client of one daemon, so requests with different limits share one: memory limits are per GPU,
which the daemon keeps, and of active thread percentages the daemon has the largest and containers
of the other requests have theirs in their environment. The supervisor sets compute modes and puts
them back. A MIG device has a domain of its own: a process cannot use two, nor one beside a whole
GPU.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from dra_driver.cdi.model import Edits
from dra_driver.devices.kinds import DeviceKind, GpuPart
from dra_driver.devices.model import Gpu, GpuUuid, MigDevice
from dra_driver.devices.shares import MIB, memory_of
from dra_driver.devices.versions import dotted
from dra_driver.errors import ConfigError, StateError
from dra_driver.mps.client_edits import client_edits
from dra_driver.mps.domain import (
    Domain,
    DomainDevice,
    DomainId,
    claim_of,
    domain_json,
    domain_of,
    mig_domain,
)
from dra_driver.mps.requests import DomainRequests
from dra_driver.sharing.base import Description, DeviceKey, Group, Sharing, SharingPlan, select_from
from dra_driver.sharing.mps_limits import active_thread_percentage, pinned_memory_mib
from resource_nvidia_com.v1beta1.names import SharingStrategy

if TYPE_CHECKING:
    from resource_nvidia_com.v1beta1.sharing import MpsConfig

NAME = str(SharingStrategy.MPS)

GONE_SECONDS = 15.0
"""How long to wait for a daemon's end: it is asked, and killed when it does not answer."""

# Compute capabilities: of any MPS, and of Volta, whose clients have address spaces and
# limits of their own (NVIDIA's MPS documentation).
_MPS, _LIMITS = (3, 5), (7, 0)
_ALL = 100


class Mps(Sharing):
    """The strategy MPS: one plan and domain for all whole GPUs, and one for each MIG device.

    A daemon may take `ready_seconds` to be ready, within a call's deadline.
    """

    survives_reboot = True

    def __init__(
        self, requests: DomainRequests, clock: Callable[[], float], *, ready_seconds: float
    ) -> None:
        self._requests = requests
        self._clock = clock
        self._ready_seconds = ready_seconds

    def plan(self, groups: Sequence[Group], deadline: float) -> tuple[SharingPlan, ...]:  # noqa: ARG002 (a Sharing)
        """Return the plan for all whole GPUs, and one for each MIG device."""
        limited = [(group, _config(group)) for group in groups]
        for group, config in limited:
            _check_cards((*group.gpus, *(unit.gpu for unit in group.migs)), config)
        whole = [(group, config) for group, config in limited if group.gpus]
        return (*_plans_of_gpus(whole), *_plans_of_migs(limited))

    def edits(self, plan: SharingPlan) -> Mapping[DeviceKey, Edits]:
        """Return what makes containers clients, with limits where they are below the domain's."""
        domain = _domain(plan)
        paths = self._requests.paths(domain.id)
        most = domain.active_thread_percentage or _ALL
        return {
            uuid: client_edits(
                paths,
                active_thread_percentage=None if percentage == most else percentage,
            )
            for uuid, percentage in _client_percentages(plan).items()
        }

    @staticmethod
    def describe(plan: SharingPlan, device: DeviceKey) -> Description:
        """Return the domain, and the limits of the device's containers."""
        domain = _domain(plan)
        percentage = _client_percentages(plan).get(device, _ALL)
        memory = next((one.pinned_memory_mib for one in domain.devices if one.uuid == device), None)
        settings: dict[str, object] = {}
        words: list[str] = []
        if percentage != _ALL:
            settings["activeThreadPercentage"] = percentage
            words.append(f"{percentage} % of threads")
        if memory is not None:
            settings["pinnedMemoryMiB"] = memory
            asked = too_high(plan).get(device)
            words.append(f"{memory} MiB" + (f" (asked for {asked} MiB)" if asked else ""))
        if domain.multi_user:
            settings["multiUser"] = True
            words.append("multi-user")
        return Description(settings=settings, words=", ".join(words), domain=domain.id)

    def apply(self, plan: SharingPlan, deadline: float) -> None:  # noqa: ARG002 (a Sharing)
        """Ask for the domain."""
        self.ensure(plan)

    def ensure(self, plan: SharingPlan) -> None:
        """See to it that the domain is asked for."""
        self._requests.write_desired(_domain(plan))

    def wait_ready(self, plan: SharingPlan, deadline: float, given_up: Callable[[], bool]) -> None:
        """Wait until the domain's daemon serves clients with these limits."""
        end = min(deadline, self._clock() + self._ready_seconds)
        self._requests.wait_ready(_domain(plan), end, given_up)

    def let_go(self, plan: SharingPlan, deadline: float) -> None:
        """Ask for the domain's end and wait for it."""
        self._end([_domain(plan).id], deadline)

    def undo(self, plan: SharingPlan, deadline: float) -> None:  # noqa: ARG002 (a Sharing)
        """Ask for the domain's end."""
        self._end([_domain(plan).id], self._clock())

    def claims(self) -> frozenset[str]:
        """Return the claims that have a domain of their own."""
        found = map(claim_of, self._requests.list())
        return frozenset(claim for claim in found if claim is not None)

    def sweep(self, claim: str, deadline: float) -> None:
        """Ask for the end of all domains of a claim, and wait for it."""
        self._end(sorted(one for one in self._requests.list() if claim_of(one) == claim), deadline)

    def _end(self, domains: Sequence[DomainId], deadline: float) -> None:
        for domain in domains:
            self._requests.remove(domain)
        end = min(deadline, self._clock() + GONE_SECONDS)
        for domain in domains:
            self._requests.wait_gone(domain, end)


def _domain(plan: SharingPlan) -> Domain:
    try:
        return domain_of(plan.changes["domain"])
    except (KeyError, StateError) as error:
        raise StateError(f"the record's plan for MPS cannot be read: {error}") from error


def too_high(plan: SharingPlan) -> dict[DeviceKey, int]:
    """Return by device the MiB that a config asks for where it has less. Raises StateError."""
    asked = plan.changes.get("tooHigh", {})
    if not isinstance(asked, Mapping):
        raise StateError("the record's plan for MPS does not say which limits are too high")
    return {DeviceKey(uuid): int(mib) for uuid, mib in asked.items()}


def _client_percentages(plan: SharingPlan) -> dict[DeviceKey, int]:
    """Return by device the active thread percentage of containers that use it; 100 is no limit."""
    clients = plan.changes.get("clients")
    if not isinstance(clients, Mapping):
        raise StateError("the record's plan for MPS names no clients")
    return {DeviceKey(uuid): int(percentage) for uuid, percentage in clients.items()}


def _plans_of_gpus(limited: Sequence["tuple[Group, MpsConfig]"]) -> tuple[SharingPlan, ...]:
    """Return the plan for one domain over all whole GPUs; none if there are none."""
    if not limited:
        return ()
    memory: dict[str, int | None] = {}
    devices: dict[str, Gpu | MigDevice] = {}
    for group, config in limited:
        memory |= pinned_memory_mib(config, [gpu.uuid for gpu in group.gpus])
        devices |= {gpu.uuid: gpu for gpu in group.gpus}
    percentages: dict[str, int] = {
        gpu.uuid: active_thread_percentage(config) or _ALL
        for group, config in limited
        for gpu in group.gpus
    }
    uuids = sorted(memory)
    changes = _changes(
        DomainId(limited[0][0].claim),
        [_Limited(device=devices[uuid], asked_mib=memory[uuid]) for uuid in uuids],
        percentages,
        multi_user=any(bool(config.multi_user) for _, config in limited),
    )
    gpus = tuple(GpuUuid(uuid) for uuid in uuids)
    return (SharingPlan(strategy=NAME, gpus=gpus, changes=changes),)


def _plans_of_migs(limited: Sequence["tuple[Group, MpsConfig]"]) -> tuple[SharingPlan, ...]:
    """Return a plan for each MIG device, numbered through the claim."""
    plans: list[SharingPlan] = []
    for group, config in limited:
        if not group.migs:
            continue
        memory = pinned_memory_mib(config, [unit.device.uuid for unit in group.migs])
        for unit in group.migs:
            uuid, parent = unit.device.uuid, unit.gpu.uuid
            changes = _changes(
                mig_domain(group.claim, len(plans)),
                [_Limited(device=unit.device, asked_mib=memory[uuid])],
                {uuid: active_thread_percentage(config) or _ALL},
                multi_user=bool(config.multi_user),
            )
            place = GpuPart(gpu=parent, placement=unit.device.placement)
            plans.append(
                SharingPlan(strategy=NAME, gpus=(parent,), changes=changes, places=(place,))
            )
    return tuple(plans)


class _Limited(Struct, frozen=True, kw_only=True):
    """A device, and the limit of pinned memory that a config asks for; None for none."""

    device: Gpu | MigDevice
    asked_mib: int | None

    @property
    def held_mib(self) -> int | None:
        """The limit that holds: the daemon takes any number, and no program has more than all."""
        total = memory_of(self.device)
        if self.asked_mib is None or total is None:
            return self.asked_mib
        return min(self.asked_mib, total // MIB)

    @property
    def wanted(self) -> DomainDevice:
        kind = DeviceKind.GPU if isinstance(self.device, Gpu) else DeviceKind.MIG
        return DomainDevice(uuid=self.device.uuid, kind=kind, pinned_memory_mib=self.held_mib)


def _changes(
    domain: DomainId,
    devices: Sequence[_Limited],
    percentages: Mapping[str, int],
    *,
    multi_user: bool,
) -> Mapping[str, object]:
    largest = max(percentages.values())
    wanted = Domain(
        id=domain,
        devices=tuple(one.wanted for one in devices),
        active_thread_percentage=None if largest == _ALL else largest,
        multi_user=multi_user,
    )
    changes: dict[str, object] = {
        "domain": domain_json(wanted),
        "clients": dict(sorted(percentages.items())),
    }
    too_much = {one.device.uuid: one.asked_mib for one in devices if one.asked_mib != one.held_mib}
    return changes | ({"tooHigh": too_much} if too_much else {})


def _config(group: Group) -> "MpsConfig":
    # Who has a config has pydantic loaded.
    from resource_nvidia_com.v1beta1.sharing import MpsConfig  # noqa: PLC0415

    sharing = group.config.sharing if group.config else None
    return (sharing.mps_config if sharing else None) or MpsConfig()


def _check_cards(gpus: Sequence[Gpu], config: "MpsConfig") -> None:
    asked = {
        "multiuser mode": config.multi_user,
        "defaultActiveThreadPercentage": active_thread_percentage(config),
        "defaultPinnedDeviceMemoryLimit": config.default_pinned_device_memory_limit,
        "defaultPerDevicePinnedMemoryLimit": config.default_per_device_pinned_memory_limit,
    }
    needed = {"MPS": _MPS} | {what: _LIMITS for what, value in asked.items() if value}
    for what, least in needed.items():
        for gpu in gpus:
            if gpu.cuda_compute_capability < least:
                raise ConfigError(
                    f"{what} was requested but is not supported: {gpu.uuid} "
                    f"({gpu.product_name}) has insufficient cudaComputeCapability "
                    f'"{dotted(gpu.cuda_compute_capability)}", wanted >= "{dotted(least)}"; '
                    f"leave that out of the config, or {select_from(least)}"
                )
