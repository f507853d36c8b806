"""Chooses the best way that a node has to limit the memory of a divided device's tenants.

In: devices that several claims have shares of, and the claims. Out: a `MemoryPart` for each step of
shares (sharing/steps.py), so that the undo needs only the record; and for people, what limits
memory and why nothing better does. Best are control groups (sharing/memory_groups.py), which no
program can evade; then limits of MPS, which its daemon enforces and which need nothing here. All
tenants of a device are limited in the same way: a later one gets what the earlier ones have,
because an MPS daemon has one set of limits.
"""

from collections.abc import Sequence

import structlog
from msgspec import Struct
from msgspec.structs import replace

from dra_driver.devices.device import Base, Mig, Whole
from dra_driver.devices.model import Gpu
from dra_driver.devices.shares import LIMITS_SINCE, ConsumedShare, Share, ShareStrategy
from dra_driver.errors import ConfigError
from dra_driver.host.words import named
from dra_driver.host.worker import LogOnce
from dra_driver.sharing.base import Group, Unit
from dra_driver.sharing.memory_groups import MemoryGroups
from dra_driver.sharing.steps import Backend, MemoryPart

_BEST_FIRST = tuple(Backend)
_OF_EACH_CLAIM = {Backend.WATCHED, Backend.NOTHING}
"""The backends that can differ between the tenants of one device."""

UNSEEN = (
    "this pod cannot see containers' processes, so it cannot check their memory: set the chart's "
    "usage.enabled (hostPID)"
)

log = structlog.get_logger()


class Choice(Struct, frozen=True, kw_only=True):
    """What enforces memory limits. `why` says why nothing better does; empty for the best."""

    by: Backend
    why: str = ""

    def with_condition(self) -> str | None:
        """Return the backend's name, with what its limits depend on; None if nothing limits.

        Programs can remove MPS's limit by their environment, even the daemon's (docs/hardware.md).
        """
        words = self.by.words()
        if self.by is Backend.MPS:
            return f"{words}, unless a program changes MPS's environment variables"
        return words


class ShareMemory:
    """Chooses what enforces memory; `groups` enforces it by control groups. For any thread.

    `sees_processes`: whether this process can see how much memory the processes of containers have.
    """

    def __init__(self, groups: MemoryGroups, *, sees_processes: bool = False) -> None:
        self.groups = groups
        self.sees_processes = sees_processes
        self._once = LogOnce()
        self._cautions = LogOnce()

    def choose(
        self, gpu: Gpu, base: Base, strategy: ShareStrategy, *, has_size: bool = False
    ) -> Choice:
        """Return what enforces memory limits on a device of a GPU that a strategy shares.

        `has_size`: the size of a share is known, even if the strategy divides no memory. Raises
        DeviceError or TransientError if the GPU does not report what it can do, StateError if the
        records cannot be read.
        """
        choice = self._best(gpu, base, strategy, has_size=has_size)
        present = self._present(base)
        if present not in (None, choice.by) and not {present, choice.by} <= _OF_EACH_CLAIM:
            why = choice.why or "earlier claims are limited like this; it changes when they end"
            choice = Choice(by=present, why=why)
        uuid, words = gpu.uuid, choice.with_condition() or "nothing"
        if self._once.is_new(f"{words}: {choice.why}", uuid):
            log.info("memory enforcement chosen", gpu=uuid, limited_by=words, why=choice.why)
        return choice

    def caution(self, gpu: Gpu) -> str | None:
        """Return what may end the limits of a GPU's tenants, if anything. Raises as `choose`."""
        whole = Whole(gpu=gpu.uuid)
        by = (
            self._present(whole)
            or self._best(gpu, whole, ShareStrategy.TIME_SLICING, has_size=False).by
        )
        caution = self.groups.caution(gpu) if by is Backend.CONTROL_GROUPS else None
        if caution is None:
            self._cautions.forget(gpu.uuid)
        elif self._cautions.is_new(caution, gpu.uuid):
            log.warning("memory limits can be lost", gpu=gpu.uuid, reason=caution)
        return caution

    def part(
        self, claim: Group, units: Sequence[Unit], choice: Choice, mib: int | None
    ) -> MemoryPart:
        """Return how the memory of a claim's shares of a device is limited.

        `mib` is the MiB that control groups leave the claim there. Raises ConfigError if several
        pods share the claim, or it is reserved for a PodGroup, whose pods cannot be limited
        together.
        """
        part = MemoryPart(by=choice.by, why=choice.why, claim=claim.claim)
        if choice.by is not Backend.CONTROL_GROUPS or mib is None:
            return part
        return replace(part, pod=_only_pod(claim), gpu=units[0].gpu.uuid, mib=mib)

    def _best(self, gpu: Gpu, base: Base, strategy: ShareStrategy, *, has_size: bool) -> Choice:
        why = self.groups.why_not(base)
        if why is None:
            return Choice(by=Backend.CONTROL_GROUPS)
        is_mps = strategy is ShareStrategy.MPS
        if is_mps and gpu.cuda_compute_capability >= LIMITS_SINCE:
            return Choice(by=Backend.MPS, why=why)
        reason = "time-slicing divides no memory"
        if is_mps:
            reason = f"MPS limits nothing on {gpu.product_name}, which is older than Volta"
        by = Backend.NOTHING
        if is_mps or has_size:
            by = Backend.WATCHED if self.sees_processes else by
            reason += "" if self.sees_processes else f", and {UNSEEN}"
        return Choice(by=by, why=f"{why}; {reason}")

    def _present(self, base: Base) -> Backend | None:
        """Return what limits the present tenants of a device; None if it has no tenants."""
        if isinstance(base, Mig):
            return None
        present = (tenant.by for tenant in self.groups.tenants(base.gpu))
        return min(present, key=_BEST_FIRST.index, default=None)


def has_size(share: Share) -> bool:
    """Tell whether the size of a share's memory is known, also under time-slicing."""
    if isinstance(share, ConsumedShare):
        return share.memory_mib > 0
    return share.division.equal_memory


def _only_pod(claim: Group) -> str:
    if claim.pod_groups:
        raise ConfigError(
            f"claim {claim.name} has a share of GPU memory and is reserved for PodGroup "
            f"{named(sorted(claim.pod_groups))}: memory is limited pod by pod, and one share "
            "cannot be divided among a group; take the claim out of the PodGroup's "
            "spec.resourceClaims, so that its resourceClaimTemplate makes one for each pod, or "
            "give the group whole GPUs or MIG devices"
        )
    if len(claim.pods) == 1:
        return next(iter(claim.pods))
    names = named(sorted(claim.pods.values()))
    pods = f"{len(claim.pods)} pods ({names})" if claim.pods else "no pod"
    raise ConfigError(
        f"claim {claim.name} has a share of GPU memory and is reserved for {pods}: memory is "
        "limited pod by pod, and one share cannot be divided; give each pod a claim of its own by "
        "a resourceClaimTemplate"
    )
