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
from dra_driver.sharing.pod_limits import PodLimits
from dra_driver.sharing.steps import MemoryPart


class MemoryGroups:
    """Limits memory by control groups; for a part that is not limited this way it does nothing.

    TransientError means that the pod has no group yet, or that NVML is not open now; DeviceError
    that NVML refuses, or that processes already have more. From the records of claims, `tenants`
    returns what those on a GPU may have.
    """

    def __init__(
        self,
        pods: PodLimits,
        tenants: Callable[[GpuUuid], Sequence[MemoryPart]],
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

    def do(self, part: MemoryPart) -> None:
        """Limit the pod to what all its claims have, and leave other pods no memory."""
        if part.gpu is not None:
            self.pods.limit(part.pod, part.gpu, self._size(part, part.gpu))
            self.pods.refuse_others(part.gpu)

    def ensure(self, part: MemoryPart) -> None:
        """Make sure that the pod's limit is in force, and set a missing one again."""
        if part.gpu is not None:
            size = self._size(part, part.gpu)
            if not self.pods.holds(part.pod, part.gpu, size):
                self.pods.limit(part.pod, part.gpu, size)
            self.pods.refuse_others(part.gpu)

    def undo(self, part: MemoryPart) -> None:
        """Set the limit to what the remaining claims have."""
        gpu = part.gpu
        if gpu is None:
            return
        left = self.bytes_of(part.pod, gpu)
        if left == 0:
            self.pods.unlimit(part.pod, gpu)
        elif not self.pods.holds(part.pod, gpu, left):
            self.pods.limit(part.pod, gpu, left)
        if not any(tenant.gpu == gpu for tenant in self.tenants(gpu)):
            self.pods.admit_others(gpu)

    def bytes_of(self, pod: str, gpu: GpuUuid) -> int:
        """Return how much memory of a GPU the claims of a pod may have together, in bytes."""
        parts = (part for part in self.tenants(gpu) if (part.pod, part.gpu) == (pod, gpu))
        return MIB * sum(part.mib for part in parts)

    def _size(self, part: MemoryPart, gpu: GpuUuid) -> int:
        """Return the limit of a part's pod, in bytes; the part may not be recorded yet."""
        return max(self.bytes_of(part.pod, gpu), part.mib * MIB)
