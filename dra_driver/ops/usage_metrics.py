"""The metrics of who uses GPUs; beside metrics.py the only module that imports prometheus_client.

Their labels come and go with containers, so nothing of them is kept between scrapes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum

from msgspec import Struct
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

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


class UsageSeries(Struct, frozen=True):
    """One value. `labels` in the order of the metric's."""

    metric: UsageMetric
    labels: Sequence[str]
    value: float


class UsageCollector(Collector):
    """Asks for all series at each scrape."""

    def __init__(self, driver: str, series: Callable[[], Iterable[UsageSeries]]) -> None:
        self._driver = driver
        self._series = series

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Name the metrics, without asking for any."""
        return iter(_families().values())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return all series."""
        families = _families()
        for series in self._series():
            families[series.metric].add_metric((self._driver, *series.labels), series.value)
        yield from families.values()


def _families() -> dict[UsageMetric, GaugeMetricFamily]:
    found = {}
    for metric in UsageMetric:
        name, text, labels = metric.value
        found[metric] = GaugeMetricFamily(f"nvidia_dra_{name}", text, labels=("driver", *labels))
    return found
