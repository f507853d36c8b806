"""Limits the memory of shares by the control groups of pods (NVML, GPU driver R615 or newer).

In: how much memory of a GPU a claim may have, and which claims there are. Out: limits on the
claim's pod that hold whatever its processes do, with MPS or without. The limit of a pod on a GPU is
the sum of what its claims have there. claims/ knows them from their records, so every step can be
repeated, and the next step repairs what a kill has interrupted. Pods without a limit get no memory
of a GPU while it has tenants. Decision 13 gives the reasons.
"""

from collections.abc import Callable, Sequence

from dra_driver.devices.device import Base, Mig
from dra_driver.devices.model import Gpu, GpuUuid
from dra_driver.devices.shares import MIB
from dra_driver.errors import ConfigError
from dra_driver.host.words import named
from dra_driver.sharing.base import Group
from dra_driver.sharing.pod_limits import PodLimits
from dra_driver.sharing.steps import UseShares


class MemoryGroups:
    """Limits memory by control groups; for shares that are not limited this way it does nothing.

    TransientError means that the pod has no group yet, or that NVML is not open now; DeviceError
    that NVML refuses, or that processes already have more. `tenants` returns, from the records of
    claims, how they use shares of a GPU.
    """

    def __init__(
        self,
        pods: PodLimits,
        tenants: Callable[[GpuUuid], Sequence[UseShares]],
        *,
        is_wanted: bool,
    ) -> None:
        """Take what limits pods, and where the limits come from.

        Claims that are limited already stay limited until they end, even if not `is_wanted`.
        """
        self.pods = pods
        self.tenants = tenants
        self._is_wanted = is_wanted

    def why_not(self, base: Base) -> str | None:
        """Return why shares of a device cannot be limited this way; None if they can."""
        if not self._is_wanted:
            return "--share-memory excludes control groups"
        if isinstance(base, Mig):
            return "the GPU driver limits no memory of MIG devices"
        return self.pods.why_not(base.gpu)

    def caution(self, gpu: Gpu) -> str | None:
        """Return why limits may be lost when a GPU is initialised again."""
        if gpu.is_persistent is not False:
            return None
        return (
            "persistence mode is off: the GPU driver forgets memory limits when no process has "
            "the GPU open, so pods that start while this driver restarts may have none; run "
            "nvidia-persistenced on the node"
        )

    def do(self, step: UseShares) -> None:
        """Limit the pod to what all its claims have, and leave other pods no memory."""
        for gpu in step.gpus:
            self.pods.limit(step.pod, gpu, self._size(step, gpu))
            self.pods.refuse_others(gpu)

    def ensure(self, step: UseShares) -> None:
        """Make sure that the pod's limit is in force, and set a missing one again."""
        for gpu in step.gpus:
            size = self._size(step, gpu)
            if not self.pods.holds(step.pod, gpu, size):
                self.pods.limit(step.pod, gpu, size)
            self.pods.refuse_others(gpu)

    def undo(self, step: UseShares) -> None:
        """Set the limit to what the remaining claims have."""
        for gpu in step.gpus:
            left = self.bytes_of(step.pod, gpu)
            if left == 0:
                self.pods.unlimit(step.pod, gpu)
            elif not self.pods.holds(step.pod, gpu, left):
                self.pods.limit(step.pod, gpu, left)
            if not self.limits(gpu):
                self.pods.admit_others(gpu)

    def limits(self, gpu: GpuUuid) -> bool:
        """Tell whether control groups limit any claim on a GPU."""
        return any(tenant.pod for tenant in self.tenants(gpu))

    def bytes_of(self, pod: str, gpu: GpuUuid) -> int:
        """Return how much memory of a GPU the claims of a pod may have together, in bytes."""
        return MIB * sum(step.memory_mib or 0 for step in self.tenants(gpu) if step.pod == pod)

    def _size(self, step: UseShares, gpu: GpuUuid) -> int:
        """Return the limit of a step's pod, in bytes; the step may not be recorded yet."""
        return max(self.bytes_of(step.pod, gpu), MIB * (step.memory_mib or 0))


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
