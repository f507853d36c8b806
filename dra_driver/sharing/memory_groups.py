"""Limits the memory of shares by the control groups of pods (NVML, GPU driver R615 or newer).

In: how much memory of a GPU a claim may have, and which claims there are. Out: limits on the
claim's pod that hold whatever its processes do, with MPS or without. The limit of a pod on a GPU is
the sum of what its claims have there. claims/ knows them from their records, so every step can be
repeated, and the next step repairs what a kill has interrupted. Pods without a limit get no memory
of a GPU while it has tenants. Decision 13 gives the reasons.

The GPU driver keeps the limits (backend misc); a kernel that counts GPU memory itself (dmem) is not
supported. A container's group gets a limit only if the pod's does not apply to it, because its own
limit replaces the pod's, even after it is cleared. Limits must be cleared before the pod's group is
removed, because the GPU driver identifies a group by its address in kernel memory, which a later
group can have.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from dra_driver.devices.control_groups import kernel_counts_gpus
from dra_driver.devices.device import Base, Mig
from dra_driver.devices.model import GpuUuid
from dra_driver.devices.session import DriverSession
from dra_driver.devices.shares import MIB
from dra_driver.errors import ConfigError, DriverError, TransientError
from dra_driver.host.words import named
from dra_driver.sharing.base import Doer, Group
from dra_driver.sharing.pod_groups import PodGroups
from dra_driver.sharing.steps import UseShares

_NOTHING = MIB
"""Too little memory, in bytes, for any CUDA context."""


class MemoryGroups(Doer[UseShares]):
    """Limits memory by control groups; for shares that are not limited this way it does nothing.

    Any thread may call it, but calls about one GPU must not overlap. TransientError means that the
    pod has no group yet, or that NVML is not open now; DeviceError that NVML refuses, that
    processes already have more, or that a pod has two groups.
    """

    def __init__(
        self,
        gpus: DriverSession,
        pods: PodGroups,
        tenants: Callable[[GpuUuid], Sequence[UseShares]],
        *,
        is_wanted: bool,
    ) -> None:
        """Take what limits groups, and where those of pods are.

        `tenants` returns, from the records of claims, how they use shares of a GPU. Claims that are
        limited already stay limited until they end, even if not `is_wanted`.
        """
        self.pods = pods
        self.tenants = tenants
        self._gpus = gpus
        self._is_wanted = is_wanted

    def why_not(self, base: Base) -> str | None:
        """Return why shares of a device cannot be limited this way; None if they can."""
        if not self._is_wanted:
            return "--share-memory excludes control groups"
        if isinstance(base, Mig):
            return "the GPU driver limits no memory of MIG devices"
        tops, hierarchy = self.pods.tops(), self.pods.hierarchy
        # An old driver is named first, because the other reasons need a newer one anyway.
        if hierarchy is not None and not tops and self._gpus.knows_memory_limits():
            return (
                "the kubelet's control group of all pods (kubepods) was not found below "
                f"{hierarchy}; mount the node's /sys/fs/cgroup there"
            )
        reasons = (self._gpus.can_limit_memory(base.gpu, top) for top in tops or (None,))
        reason = next(filter(None, reasons), None)
        if reason is None and hierarchy is not None and kernel_counts_gpus(hierarchy):
            return "the kernel counts GPU memory (dmem), which this driver does not support"
        return reason

    def do(self, step: UseShares, deadline: float) -> None:  # noqa: ARG002 (a Doer)
        """Limit the pod to what all its claims have, and leave other pods no memory."""
        if step.pod and self.pods.find(step.pod) is None:
            raise TransientError(
                f"pod {step.pod} has no control group, without which its GPU memory cannot be "
                "limited; this is retried (the kubelet makes one unless --cgroups-per-qos is false)"
            )
        self.ensure(step)

    def ensure(self, step: UseShares) -> None:
        """Make sure that the pod's limit is in force, if it has a group; set a lost one again.

        It is lost when the kubelet makes the group again, or the GPU driver is loaded again.
        """
        for gpu in step.gpus:
            self._limit(step.pod, gpu, self._size(step, gpu))
            for top in self.pods.tops():
                if not self._is_within(gpu, top, _NOTHING):
                    # The GPU driver looks only at the nearest group with a limit. So pods with one
                    # of their own are not affected, and the others need none.
                    self._gpus.set_memory_limit(gpu, top, _NOTHING)

    def undo(self, step: UseShares, deadline: float) -> None:  # noqa: ARG002 (a Doer)
        """Set the limit to what the remaining claims have; an old GPU driver has no limits."""
        for gpu in step.gpus:
            if self.pods.find(step.pod) is None and self.is_used(gpu):
                continue  # nothing is left of it, whether or not NVML answers
            if not self._gpus.knows_memory_limits():
                return
            try:
                self._limit(step.pod, gpu, self._bytes_of(step.pod, gpu))
            except DriverError:
                if self.pods.find(step.pod) is not None:
                    raise
            if not self.is_used(gpu):
                self.admit_others(gpu)

    def is_used(self, gpu: GpuUuid) -> bool:
        """Tell whether control groups limit any claim on a GPU."""
        return any(tenant.pod for tenant in self.tenants(gpu))

    def others_are_refused(self, gpu: GpuUuid) -> bool:
        """Tell whether pods without a limit get no memory of a GPU."""
        tops = self.pods.tops() if self._gpus.knows_memory_limits() else ()
        return any(self._is_within(gpu, top, _NOTHING) for top in tops)

    def admit_others(self, gpu: GpuUuid) -> None:
        """Let pods without a limit have memory of a GPU again."""
        for top in self.pods.tops():
            self._gpus.set_memory_limit(gpu, top, None)

    def free_containers(self, step: UseShares) -> list[Path]:
        """Return the groups of the pod's containers to which its limit does not apply.

        A container can have its own limit, or that of an earlier group.
        """
        return [
            container
            for gpu in step.gpus
            for container in self.pods.containers(step.pod)
            if not self._is_within(gpu, container, self._size(step, gpu))
        ]

    def bind(self, step: UseShares, container: Path) -> None:
        """Give a container to which its pod's limit does not apply the same limit."""
        for gpu in step.gpus:
            self._gpus.set_memory_limit(gpu, container, self._size(step, gpu))

    def _limit(self, pod: str, gpu: GpuUuid, size: int) -> None:
        """Make sure that a pod has this limit, in bytes; 0 is none. Without a group it has none."""
        group = self.pods.find(pod)
        if group is None:
            return
        limit = self._gpus.memory_limit(gpu, group) if size else None
        # The driver may have rounded down by less than a MiB; _NOTHING may be that of all pods.
        if limit is None or not max(_NOTHING, size - MIB) < limit <= size:
            self._gpus.set_memory_limit(gpu, group, size or None)

    def _bytes_of(self, pod: str, gpu: GpuUuid) -> int:
        """Return how much memory of a GPU the claims of a pod may have together, in bytes."""
        return MIB * sum(step.memory_mib or 0 for step in self.tenants(gpu) if step.pod == pod)

    def _size(self, step: UseShares, gpu: GpuUuid) -> int:
        """Return the limit of a step's pod, in bytes; the step may not be recorded yet."""
        return max(self._bytes_of(step.pod, gpu), MIB * (step.memory_mib or 0))

    def _is_within(self, gpu: GpuUuid, group: Path, size: int) -> bool:
        hard_bytes = self._gpus.memory_limit(gpu, group)
        return hard_bytes is not None and hard_bytes <= size


def only_pod(claim: Group) -> str:
    """Return the UID of the pod that has a claim.

    Raises ConfigError if several pods share it, or it is reserved for a PodGroup, whose pods cannot
    be limited together.
    """
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
