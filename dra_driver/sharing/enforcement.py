"""What keeps the tenants of a divided device to their memory: the best means that the node has.

In: divided devices, and the claims that get shares of them. Out: a `MemoryPart` for each plan of
shares (sharing/shares.py), written down with it, so that to undo takes nothing but the record; and
for people what limits memory, and why nothing better does. The means, best first: control groups
(sharing/memory_groups.py), which no program gets round; limits of MPS, which its daemon enforces
and which need nothing here; else nothing.

The tenants of a device are all limited by the same means: who comes later gets that of those who
are there, since an MPS daemon has one set of limits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import structlog

from dra_driver.cdi.model import Edits
from dra_driver.devices.model import Gpu, GpuUuid
from dra_driver.devices.shares import ShareStrategy
from dra_driver.errors import ConfigError
from dra_driver.sharing.base import SharingPlan

MIB = 1024**2
KEY = "memory"
"""Where a plan's changes hold its `MemoryPart`."""

LIMITS_SINCE = (7, 0)
"""Compute capability of Volta, the first whose MPS clients have limits of their own."""

log = structlog.get_logger()


class Means(StrEnum):
    """What enforces memory, best first."""

    CONTROL_GROUPS = "ControlGroups"
    MPS = "MPS"
    NOTHING = "Nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedDevice:
    """A device of which tenants have shares: the GPU itself, or a MIG device on it."""

    gpu: Gpu
    is_mig: bool
    strategy: ShareStrategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What enforces memory. `why` is the reason for nothing better; empty for the best."""

    by: Means
    why: str = ""

    def words(self) -> str | None:
        """Return the means for people; None for nothing."""
        match self.by:
            case Means.CONTROL_GROUPS:
                return "control groups (NVML)"
            case Means.MPS:
                return "MPS"
            case Means.NOTHING:
                return None

    def with_condition(self) -> str | None:
        """Return the means and what its limits depend on; None for nothing.

        Any program can lift MPS's limit of memory for itself, by its environment, even where the
        daemon has the limit too (docs/hardware.md).
        """
        words = self.words()
        if self.by is Means.MPS:
            return f"{words}, while programs leave its variables alone"
        return words


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A claim that gets shares.

    Attributes:
        claim: its UID.
        name: namespace and name.
        pods: the names of the pods that it is reserved for, by UID.
        pod_groups: the names of the PodGroups that it is reserved for.
        mib: MiB of each GPU for all of its shares there.
    """

    claim: str
    name: str
    pods: Mapping[str, str]
    pod_groups: tuple[str, ...] = ()
    mib: Mapping[GpuUuid, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPart:
    """What a claim may have of the memory of a plan's GPUs, and what enforces it.

    Attributes:
        by: what enforces it.
        of_device: what enforces it for tenants of the device in general.
        why: why nothing better does.
        claim: the claim's UID.
        pod: the UID of the pod that is limited; empty unless by control groups.
        mib: MiB of each GPU for all of the claim's shares there; empty likewise.
    """

    by: Means
    of_device: Means
    why: str = ""
    claim: str = ""
    pod: str = ""
    mib: Mapping[GpuUuid, int] = field(default_factory=dict)

    @property
    def choice(self) -> Choice:
        """What enforces it, and why."""
        return Choice(by=self.by, why=self.why)


class Enforcement(Protocol):
    """One means of enforcing memory. What is done to a GPU is done with it locked, and again."""

    @property
    def means(self) -> Means:
        """Which it is."""
        ...

    def why_not(self, device: DividedDevice) -> str | None:
        """Return why it cannot be had on a device; None if it can.

        Raises:
            DeviceError, TransientError: the GPU does not say.
        """
        ...

    def why_not_for(self, mib: Mapping[GpuUuid, int]) -> str | None:
        """Return why it cannot be had for a claim with so many MiB of GPUs; None if it can."""
        ...

    def caution(self, gpu: Gpu) -> str | None:
        """Return what may end limits on a GPU, and what to do; None if nothing does."""
        ...

    def apply(self, part: MemoryPart) -> None:
        """Bring it about. Raises ConfigError, DeviceError, TransientError."""
        ...

    def ensure(self, part: MemoryPart) -> None:
        """See to it that it holds. Raises DeviceError, TransientError."""
        ...

    def undo(self, part: MemoryPart) -> None:
        """Take it back. Raises DeviceError, TransientError."""
        ...

    def edits(self, part: MemoryPart) -> Edits:
        """Return what containers get for it."""
        ...


class MpsLimits:
    """Limits of MPS: they go with the domain, and with its clients' environment."""

    means = Means.MPS

    def why_not(self, device: DividedDevice) -> str | None:
        """Return why MPS limits nothing on a device; None if it does."""
        if device.strategy is not ShareStrategy.MPS:
            return "time-slicing divides no memory"
        if device.gpu.cuda_compute_capability < LIMITS_SINCE:
            return f"MPS limits nothing on {device.gpu.product_name}, which is older than Volta"
        return None

    def why_not_for(self, mib: Mapping[GpuUuid, int]) -> None:
        """Return None: each GPU has a limit of its own."""

    def caution(self, gpu: Gpu) -> None:
        """Return None: limits are the daemon's and its clients'."""

    def apply(self, part: MemoryPart) -> None:
        """Leave it to the domain."""

    def ensure(self, part: MemoryPart) -> None:
        """Leave it to the domain."""

    def undo(self, part: MemoryPart) -> None:
        """Leave it to the domain."""

    def edits(self, part: MemoryPart) -> Edits:
        """Leave it to the domain's edits."""
        del part
        return Edits()


class ShareMemory:
    """Chooses what enforces memory, and has it done. For any thread."""

    def __init__(
        self,
        means: Sequence[Enforcement],
        tenants: Callable[[GpuUuid], Sequence[MemoryPart]],
    ) -> None:
        """Take the means that may be chosen, and who knows the tenants.

        Args:
            means: best first.
            tenants: what the claims may have that hold something of a GPU now.
        """
        self._means = {one.means: one for one in means}
        self._tenants = tenants
        self._said: dict[GpuUuid, Choice] = {}
        self._cautions: dict[GpuUuid, str | None] = {}

    def choose(self, device: DividedDevice) -> Choice:
        """Return what enforces memory on a device.

        Raises:
            DeviceError, TransientError: the GPU does not say what it can do.
            StateError: the records cannot be read.
        """
        choice = self._best(device)
        present = self._present(device)
        if present is not None and present is not choice.by:
            why = choice.why or "claims that came before are limited so; it changes when they end"
            choice = Choice(by=present, why=why)
        if self._said.get(device.gpu.uuid) != choice:
            self._said[device.gpu.uuid] = choice
            words = choice.with_condition() or "nothing"
            log.info(
                "memory enforcement chosen", gpu=device.gpu.uuid, limited_by=words, why=choice.why
            )
        return choice

    def caution(self, gpu: Gpu) -> str | None:
        """Return what may end the limits that tenants of a GPU have; None if nothing does.

        Raises:
            DeviceError, TransientError, StateError: as for `choose`.
        """
        device = DividedDevice(gpu=gpu, is_mig=False, strategy=ShareStrategy.TIME_SLICING)
        by = self._present(device) or self._best(device).by
        found = self._means[by].caution(gpu) if by in self._means else None
        if found is not None and self._cautions.get(gpu.uuid) != found:
            log.warning("memory limits can be lost", gpu=gpu.uuid, reason=found)
        self._cautions[gpu.uuid] = found
        return found

    def choose_for(self, devices: Sequence[DividedDevice]) -> Choice:
        """Return what enforces memory on devices that are served together: the worst of them.

        Raises:
            DeviceError, TransientError, StateError: as for `choose`.
        """
        order = list(Means)
        return max(map(self.choose, devices), key=lambda choice: order.index(choice.by))

    def part(
        self,
        tenant: Tenant,
        choice: Choice,
        mib: Mapping[GpuUuid, int],
        devices: Sequence[DividedDevice],
    ) -> MemoryPart:
        """Return what a claim gets of the memory of GPUs.

        Args:
            tenant: the claim.
            choice: what enforces memory on these devices.
            mib: of each of their GPUs, for all of the claim's shares there.
            devices: those that are served together.

        Raises:
            ConfigError: it is shared by several pods, or reserved for a PodGroup, whose pods
                cannot be limited together.
            DeviceError, TransientError: a GPU does not say what it can do.
        """
        means = self._means.get(choice.by)
        why = means.why_not_for(tenant.mib) if means is not None else None
        if why is not None:
            rest = [self._best(one, after=choice.by, why=why) for one in devices]
            worst = max(rest, key=lambda one: list(Means).index(one.by))
            return MemoryPart(by=worst.by, of_device=choice.by, why=worst.why, claim=tenant.claim)
        if choice.by is not Means.CONTROL_GROUPS or not mib:
            return MemoryPart(by=choice.by, of_device=choice.by, why=choice.why, claim=tenant.claim)
        return MemoryPart(
            by=choice.by,
            of_device=choice.by,
            why=choice.why,
            claim=tenant.claim,
            pod=only_pod(tenant),
            mib=mib,
        )

    def apply(self, part: MemoryPart) -> None:
        """Bring a part about. Raises ConfigError, DeviceError, TransientError."""
        if part.by in self._means:
            self._means[part.by].apply(part)

    def ensure(self, part: MemoryPart) -> None:
        """See to it that a part holds. Raises DeviceError, TransientError."""
        if part.by in self._means:
            self._means[part.by].ensure(part)

    def undo(self, part: MemoryPart) -> None:
        """Take a part back. Raises DeviceError, TransientError."""
        if part.by in self._means:
            self._means[part.by].undo(part)

    def edits(self, part: MemoryPart) -> Edits:
        """Return what containers get for a part, beside what a domain gives them."""
        return self._means[part.by].edits(part) if part.by in self._means else Edits()

    def _best(self, device: DividedDevice, after: Means | None = None, why: str = "") -> Choice:
        reasons = [why] if why else []
        for means, one in self._means.items():
            if after is not None and list(Means).index(means) <= list(Means).index(after):
                continue
            reason = one.why_not(device)
            if reason is None:
                return Choice(by=means, why="; ".join(reasons))
            reasons.append(reason)
        return Choice(by=Means.NOTHING, why="; ".join(reasons))

    def _present(self, device: DividedDevice) -> Means | None:
        """Return by what the tenants of a device are limited; None while there is none."""
        if device.is_mig:
            return None
        order = list(Means)
        present = (one.of_device for one in self._tenants(device.gpu.uuid))
        return min(present, key=order.index, default=None)


def only_pod(tenant: Tenant) -> str:
    """Return the UID of a claim's pod.

    Raises:
        ConfigError: it has none, or several; or a PodGroup has it, all of whose pods may use it.
    """
    if tenant.pod_groups:
        raise ConfigError(
            f"claim {tenant.name} has a share of GPU memory and is reserved for PodGroup "
            f"{', '.join(sorted(tenant.pod_groups))}: memory is limited pod by pod, and one share "
            "cannot be divided among a group; take the claim out of the PodGroup's "
            "spec.resourceClaims, so that its resourceClaimTemplate makes one for each pod, or "
            "give the group whole GPUs or MIG devices"
        )
    if len(tenant.pods) == 1:
        return next(iter(tenant.pods))
    names = ", ".join(sorted(tenant.pods.values()))
    pods = f"{len(tenant.pods)} pods ({names})" if tenant.pods else "no pod"
    raise ConfigError(
        f"claim {tenant.name} has a share of GPU memory and is reserved for {pods}: memory is "
        "limited pod by pod, and one share cannot be divided; give each pod a claim of its own by "
        "a resourceClaimTemplate"
    )


def part_json(part: MemoryPart) -> dict[str, object]:
    """Return a part as a plan's changes hold it."""
    return {
        "by": str(part.by),
        "ofDevice": str(part.of_device),
        "why": part.why,
        "claim": part.claim,
        "pod": part.pod,
        "mib": dict(part.mib),
    }


def part_of(plan: SharingPlan) -> MemoryPart | None:
    """Return the part of a plan; None for a plan that says nothing of memory.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: it cannot be read.
    """
    value: Any = plan.changes.get(KEY)
    if value is None:
        return None
    return MemoryPart(
        by=Means(value["by"]),
        of_device=Means(value["ofDevice"]),
        why=str(value["why"]),
        claim=str(value["claim"]),
        pod=str(value["pod"]),
        mib={GpuUuid(uuid): int(mib) for uuid, mib in value["mib"].items()},
    )
