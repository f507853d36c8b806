"""Sets limits of GPU memory on the control groups of pods, and removes them again.

In: a pod's UID, a GPU, and bytes. Out: limits that NVML enforces for all of the pod's processes
together. All calls can be repeated.

The GPU driver keeps the limits (backend misc); a kernel that counts GPU memory itself (dmem) is not
supported. A container's group gets a limit only if the pod's does not apply to it, because its own
limit replaces the pod's, even after it is cleared. Limits must be cleared before the pod's group is
removed, because the GPU driver identifies a group by its address in kernel memory, which a later
group can have. sharing/memory_groups.py decides how much
each pod may have.
"""

from pathlib import Path

from dra_driver.devices.control_groups import kernel_counts_gpus
from dra_driver.devices.model import GpuUuid
from dra_driver.devices.session import DriverSession
from dra_driver.devices.shares import MIB
from dra_driver.errors import ConfigError, DriverError, TransientError
from dra_driver.sharing.pod_groups import PodGroups

_NOTHING = MIB
"""Too little memory, in bytes, for any CUDA context."""


class PodLimits:
    """Limits pods. Any thread may call it, but calls about one pod and GPU must not overlap.

    TransientError means that NVML is not open now, or that a pod has no group yet; DeviceError that
    NVML refuses, that processes of a group already have more than its limit, or that a pod has two
    groups.
    """

    def __init__(self, *, gpus: DriverSession, groups: PodGroups) -> None:
        self._gpus = gpus
        self._groups = groups

    def why_not(self, gpu: GpuUuid) -> str | None:
        """Return why pods cannot be limited on a GPU; None if they can."""
        tops = self._groups.tops()
        if not tops:
            # An old driver is named first, because the other reasons need a newer one anyway.
            reason = self._gpus.can_limit_memory(gpu, None)
            if reason is None or self._groups.hierarchy is None:
                return reason
            return (
                "the kubelet's control group of all pods (kubepods) was not found below "
                f"{self._groups.hierarchy}; mount the node's /sys/fs/cgroup there"
            )
        reasons = (self._gpus.can_limit_memory(gpu, top) for top in tops)
        reason = next((reason for reason in reasons if reason is not None), None)
        hierarchy = self._groups.hierarchy
        if reason is None and hierarchy is not None and kernel_counts_gpus(hierarchy):
            return "the kernel counts GPU memory (dmem), which this driver does not support"
        return reason

    def has_group(self, pod: str) -> bool:
        """Tell whether a pod has a control group."""
        return self._groups.find(pod) is not None

    def limit(self, pod: str, gpu: GpuUuid, size: int) -> None:
        """Limit a pod, all its containers together, to `size` bytes of a GPU."""
        if size <= 0:
            raise ConfigError(f"pod {pod} cannot have {size} bytes of {gpu}; give it 1 MiB")
        group = self._groups.find(pod)
        if group is None:
            raise TransientError(
                f"pod {pod} has no control group, without which its GPU memory cannot be limited; "
                "this is retried (the kubelet makes one unless --cgroups-per-qos is false)"
            )
        self._gpus.set_memory_limit(gpu, group.path, size)

    def unlimit(self, pod: str, gpu: GpuUuid) -> None:
        """Remove a pod's limit. Without a group, or with an old GPU driver, there is none."""
        group = self._groups.find(pod)
        if group is None or not self._gpus.knows_memory_limits():
            return
        try:
            self._gpus.set_memory_limit(gpu, group.path, None)
        except DriverError:
            if self._groups.find(pod) is not None:
                raise

    def holds(self, pod: str, gpu: GpuUuid, size: int) -> bool:
        """Tell whether exactly this limit is in force for a pod, or the pod has no group.

        It is not after the kubelet has made the group again, or the GPU driver was loaded again;
        then the limit of all pods may be in force. The driver may have rounded down by less than a
        MiB.
        """
        group = self._groups.find(pod)
        if group is None:
            return True
        limit = self._gpus.memory_limit(gpu, group.path)
        return limit is not None and max(0, size - MIB) < limit <= size

    def free_containers(self, pod: str, gpu: GpuUuid, size: int) -> tuple[Path, ...]:
        """Return the groups of a pod's containers to which its limit does not apply.

        A container can have its own limit, or that of an earlier group.
        """
        group = self._groups.find(pod)
        if group is None:
            return ()
        return tuple(
            container for container in group.containers if not self._is_within(gpu, container, size)
        )

    def bind_container(self, container: Path, gpu: GpuUuid, size: int) -> None:
        """Give a container to which its pod's limit does not apply the same limit."""
        self._gpus.set_memory_limit(gpu, container, size)

    def are_others_refused(self, gpu: GpuUuid) -> bool:
        """Tell whether `refuse_others` is in force on a GPU."""
        if not self._gpus.knows_memory_limits():
            return False
        return any(self._is_within(gpu, top, _NOTHING) for top in self._groups.tops())

    def refuse_others(self, gpu: GpuUuid) -> None:
        """Leave pods without a limit no memory of a GPU (1 MiB for all of them together).

        The GPU driver looks only at the nearest group with a limit, so pods with their own limit
        are not affected, and the others need no entry.
        """
        for top in self._groups.tops():
            if not self._is_within(gpu, top, _NOTHING):
                self._gpus.set_memory_limit(gpu, top, _NOTHING)

    def admit_others(self, gpu: GpuUuid) -> None:
        """Undo `refuse_others`, however often it was called."""
        tops = self._groups.tops()
        if tops and self._gpus.knows_memory_limits():
            for top in tops:
                self._gpus.set_memory_limit(gpu, top, None)

    def _is_within(self, gpu: GpuUuid, group: Path, size: int) -> bool:
        hard_bytes = self._gpus.memory_limit(gpu, group)
        return hard_bytes is not None and hard_bytes <= size
