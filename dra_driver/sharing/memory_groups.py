"""Limits the memory of shares by the control groups of pods (NVML, GPU driver R615 or newer).

In: how much memory of GPUs a claim may have, and which claims there are. Out: limits on the claim's
pod that hold whatever its processes do, with MPS or without. The limit of a pod on a GPU is the sum
of what its claims have there. claims/ knows them from their records, so every step can be repeated,
and the next step repairs what a kill has interrupted. Decision 13 gives the reasons. If the GPU
driver counts memory (misc), pods without a limit get no memory of a GPU while it has tenants. If
the kernel counts it (dmem), a hook limits each container before its code runs.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from dra_driver.cdi.model import Edits, Hook
from dra_driver.devices.device import Base, Mig
from dra_driver.devices.model import Gpu, GpuUuid
from dra_driver.devices.shares import MIB
from dra_driver.errors import ConfigError, try_all
from dra_driver.sharing.pod_limits import PodLimits
from dra_driver.sharing.steps import MemoryPart

_LIMIT = "NVIDIA_GPU_MEMORY_LIMIT"
_REQUEST = "NVIDIA_GPU_MEMORY_REQUEST"


class MemoryGroups:
    """Limits memory by control groups; for a part that is not limited this way it does nothing.

    TransientError means that the pod has no group yet, or that NVML is not open now; DeviceError
    that NVML refuses, or that processes already have more. From the records of claims, `tenants`
    returns what those on a GPU may have, and `of_pod` what all claims of a pod may have. `hooks`
    returns the hook that limits each container on GPUs, by UUID, or none if the node has no program
    for it; it raises DeviceError.
    """

    def __init__(
        self,
        pods: PodLimits,
        tenants: Callable[[GpuUuid], Sequence[MemoryPart]],
        of_pod: Callable[[str], Sequence[MemoryPart]],
        hooks: Callable[[Sequence[str]], tuple[Hook, ...]],
        *,
        is_wanted: bool,
    ) -> None:
        """Take what limits pods, and where the limits come from.

        Claims that are limited already stay limited until they end, even if not `is_wanted`.
        """
        self._pods = pods
        self.tenants = tenants
        self._of_pod = of_pod
        self._hooks = hooks
        self._is_wanted = is_wanted

    def why_not(self, base: Base) -> str | None:
        """Return why shares of a device cannot be limited this way; None if they can."""
        if not self._is_wanted:
            return "--share-memory excludes control groups"
        if isinstance(base, Mig):
            return "the GPU driver limits no memory of MIG devices"
        reason = self._pods.why_not(base.gpu)
        if reason is not None or not self._pods.are_counted_by_kernel():
            return reason
        if not self._hooks([base.gpu]):
            return (
                "the kernel counts GPU memory (dmem), which needs nvidia-cdi-hook 1.20.1 or newer "
                "on the node"
            )
        return None

    def why_not_for(self, mib: Mapping[GpuUuid, int]) -> str | None:
        """Return why a claim cannot be limited this way: the hook has one limit for all GPUs."""
        if self._pods.are_counted_by_kernel() and len(set(mib.values())) > 1:
            return "the claim's shares of several GPUs differ in memory, and one limit is for all"
        return None

    def caution(self, gpu: Gpu) -> str | None:
        """Return why limits may be lost when a GPU is initialised again; always None with dmem."""
        if gpu.is_persistent is not False or self._pods.are_counted_by_kernel():
            return None
        return (
            "persistence mode is off: the GPU driver forgets memory limits when no process has "
            "the GPU open, so pods that start while this driver restarts may have none; run "
            "nvidia-persistenced on the node"
        )

    def do(self, part: MemoryPart) -> None:
        """Limit the pod to what all its claims have, and leave other pods no memory.

        Raises ConfigError if another claim of the pod has its limit in its containers on that GPU.
        """
        if part.mib:
            self._check_alone(part)
        for gpu in sorted(part.mib):
            self._pods.limit(part.pod, gpu, self._size(part, gpu))
            self._pods.refuse_others(gpu)

    def ensure(self, part: MemoryPart) -> None:
        """Make sure that the pod's limits are in force, and set missing ones again."""
        for gpu in sorted(part.mib):
            size = self._size(part, gpu)
            if not self._pods.holds(part.pod, gpu, size):
                self._pods.limit(part.pod, gpu, size)
            self._pods.refuse_others(gpu)

    def undo(self, part: MemoryPart) -> None:
        """Set limits to what the remaining claims have. All GPUs are tried."""
        try_all(partial(self._reduce, part.pod, gpu) for gpu in sorted(part.mib))

    def edits(self, part: MemoryPart) -> Edits:
        """Return the edits that limit containers and tell programs the limit; none with misc."""
        if not part.mib or not self._pods.are_counted_by_kernel():
            return Edits()
        # Both variables are set, because otherwise those of the image or the pod would apply.
        limit = max(part.mib.values())
        return Edits(
            env=(f"{_LIMIT}={limit}", f"{_REQUEST}=0"),
            hooks=self._hooks(sorted(part.mib)),
        )

    def _reduce(self, pod: str, gpu: GpuUuid) -> None:
        left = self._bytes(gpu, pod)
        if left == 0:
            self._pods.unlimit(pod, gpu)
        elif not self._pods.holds(pod, gpu, left):
            self._pods.limit(pod, gpu, left)
        if not any(gpu in tenant.mib for tenant in self.tenants(gpu)):
            self._pods.admit_others(gpu)

    def _size(self, part: MemoryPart, gpu: GpuUuid) -> int:
        """Return the limit of a part's pod on a GPU, in bytes."""
        return max(self._bytes(gpu, part.pod), part.mib[gpu] * MIB)

    def _bytes(self, gpu: GpuUuid, pod: str) -> int:
        """Return how much memory of a GPU the claims of a pod may have together, in bytes."""
        return MIB * sum(
            tenant.mib.get(gpu, 0) for tenant in self.tenants(gpu) if tenant.pod == pod
        )

    def _check_alone(self, part: MemoryPart) -> None:
        """Check that the hook does not limit a container with two claims to only one of them."""
        if not self._pods.are_counted_by_kernel():
            return
        limit = set(part.mib.values())
        for other in self._of_pod(part.pod):
            is_same_gpu = not part.mib.keys().isdisjoint(other.mib)
            if other.claim != part.claim and (is_same_gpu or limit != set(other.mib.values())):
                raise ConfigError(
                    "the pod has shares of GPU memory by two claims, and on this node the limit of "
                    "one would bind containers that use the other; ask for all its shares in one "
                    "claim"
                )
