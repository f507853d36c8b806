"""The metrics of who uses GPUs: what they are called, and their values as they are exported.

Their labels come and go with containers, so nothing of them is kept between scrapes.
"""

from collections.abc import Sequence
from enum import Enum

from msgspec import Struct

_GPU = ("gpu", "device", "uuid")
_CONTAINER = ("namespace", "pod", "container", "claim", *_GPU)


class UsageMetric(Enum):
    """Name, text and labels of each."""

    UP = ("gpu_usage_up", "1 if the GPU answered NVML in time, else 0.", ("gpu",))
    MEMORY = ("gpu_memory_used_bytes", "Memory in use on a GPU or MIG device.", _GPU)
    MEMORY_TOTAL = ("gpu_memory_total_bytes", "Memory of a GPU or MIG device.", _GPU)
    BUSY = (
        "gpu_utilization_ratio",
        "Part of the time in which kernels ran on a GPU; none in MIG mode.",
        _GPU,
    )
    OTHER_MEMORY = (
        "gpu_other_memory_used_bytes",
        "Memory of processes in no container: MPS servers (owner mps), the node's own (host).",
        (*_GPU, "owner"),
    )
    CONTAINER_MEMORY = (
        "container_gpu_memory_used_bytes",
        "Memory that a container's processes have on a GPU or MIG device.",
        _CONTAINER,
    )
    CONTAINER_LIMIT = (
        "container_gpu_memory_limit_bytes",
        "Memory that a container may have there, if its claims limit it.",
        _CONTAINER,
    )
    CONTAINER_SM = (
        "container_gpu_sm_utilization_ratio",
        "Part of the time in which a container's kernels ran on a GPU; none in MIG mode or by MPS.",
        _CONTAINER,
    )
    CONTAINER_PROCESSES = (
        "container_gpu_processes",
        "Processes of a container on a GPU or MIG device.",
        _CONTAINER,
    )
    LEFT_OUT = (
        "usage_containers_left_out",
        "Containers without series, because there are too many.",
        (),
    )

    @property
    def full_name(self) -> str:
        """Its name as it is exported."""
        return f"nvidia_dra_{self.value[0]}"


class UsageSeries(Struct, frozen=True):
    """One value; `labels` in the order of the metric's labels."""

    metric: UsageMetric
    labels: Sequence[str]
    value: float
