"""Every metric of the driver, declared in one place; the only user of prometheus_client.

In: what happened, reported by the parts that did it, and functions that are called at each scrape.
Out: a WSGI application for scrapers, which ops/http.py serves. Names, labels and buckets of
NVIDIA's DRA driver are kept, so that its dashboards and alerts work; smaller and larger buckets are
added for durations. Every series exists from the start with zero, so that a rate sees the first
event. The registry belongs to the object, not to the process.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum, StrEnum
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication


T = TypeVar("T")


class Operation(StrEnum):
    """What the kubelet asks for, claim by claim."""

    PREPARE = "prepare"
    UNPREPARE = "unprepare"


class DeviceType(StrEnum):
    """The device types, as NVIDIA's driver calls them."""

    GPU = "gpu"
    MIG = "mig"
    VFIO = "vfio"
    UNKNOWN = "unknown"


class SliceWrite(StrEnum):
    """What was done to a ResourceSlice."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


# NVIDIA's driver has 0.05 x 2^0 to 2^8. These also cover a short prepare, and a kubelet's 45 s.
_SECONDS = (0.003125, 0.00625, 0.0125, 0.025, *(0.05 * 2**n for n in range(9)), 25.6, 51.2)

_ERROR_STAGES = ("lock_acquire", "devices", "publish_resources")


_GPU = ("gpu", "device", "uuid")
_CONTAINER = ("namespace", "pod", "container", "claim", *_GPU)


class UsageMetric(Enum):
    """Who uses GPUs: name, text and labels of each metric.

    Labels come and go with containers, so nothing of them is kept between scrapes.
    """

    UP = ("gpu_usage_up", "1 if the GPU answered NVML in time, else 0.", ("gpu",))
    MEMORY = ("gpu_memory_used_bytes", "Memory in use on a GPU or MIG device.", _GPU)
    MEMORY_TOTAL = ("gpu_memory_total_bytes", "Memory of a GPU or MIG device.", _GPU)
    BUSY = (
        "gpu_utilization_ratio",
        "Fraction of time in which kernels ran on a GPU; absent in MIG mode.",
        _GPU,
    )
    OTHER_MEMORY = (
        "gpu_other_memory_used_bytes",
        "Memory of processes outside containers: MPS servers (owner mps), the node's (host).",
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
        "Fraction of time in which a container's kernels ran; absent in MIG mode and with MPS.",
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


class _Registered:
    """Metrics in a registry of their own, each with the label `driver`."""

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        gauge = Gauge(name, text, ("driver", *labels), registry=self._registry)
        if not labels:
            gauge.labels(self._driver)
        return gauge

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        counter = Counter(name, text, ("driver", *labels), registry=self._registry)
        if not labels:
            counter.labels(self._driver)
        return counter

    def _declare_build(self, version: str) -> None:
        build = self._gauge("nvidia_dra_build_info", "Version of the driver.", "version")
        build.labels(self._driver, version).set(1)

    @property
    def wsgi_app(self) -> "WSGIApplication":
        """Answers each request with all metrics, in the format that it asks for."""
        return make_wsgi_app(self._registry)


class Metrics(_Registered):
    """The driver's metrics. Safe to use from any thread."""

    def __init__(self, *, driver: str, node: str, version: str) -> None:
        super().__init__(driver)
        self._node = node
        self._declare_requests()
        self._declare_node()
        self._declare_sharing()
        self._declare_health()
        self._declare_build(version)

    def _declare_requests(self) -> None:
        requests = self._counter(
            "nvidia_dra_requests", "Claims prepared or unprepared with success.", "operation"
        )
        seconds = Histogram(
            "nvidia_dra_request_duration_seconds",
            "Duration of a successful prepare or unprepare of one claim.",
            ("driver", "operation"),
            buckets=_SECONDS,
            registry=self._registry,
        )
        inflight = self._gauge(
            "nvidia_dra_requests_inflight", "Claims being prepared or unprepared now.", "operation"
        )
        self._errors: dict[Operation, Counter] = {}
        for operation in Operation:
            self._errors[operation] = self._counter(
                f"nvidia_dra_node_{operation}_errors",
                f"Claims that could not be {operation}d, by stage.",
                "error_type",
            )
            for stage in _ERROR_STAGES:
                error_type = f"{operation}_devices" if stage == "devices" else stage
                self._errors[operation].labels(self._driver, error_type)
        # Looked up once, as each call counts in all three.
        self._succeeded = {each: requests.labels(self._driver, each) for each in Operation}
        self._durations = {each: seconds.labels(self._driver, each) for each in Operation}
        self._now = {each: inflight.labels(self._driver, each) for each in Operation}

    def _declare_node(self) -> None:
        self._registered = self._gauge(
            "nvidia_dra_kubelet_registered", "1 once the kubelet has accepted the driver, else 0."
        )
        self._gpus = self._gauge(
            "nvidia_dra_gpus", "GPUs that the GPU driver lists, by whether they answer.", "state"
        )
        self._publish_time = self._gauge(
            "nvidia_dra_last_publish_timestamp_seconds",
            "When the API server last had all slices of this node as desired; 0 if never.",
        )
        self._published = self._gauge("nvidia_dra_published_devices", "Devices last published.")
        self._slices = self._gauge("nvidia_dra_published_slices", "ResourceSlices last published.")
        self._writes = self._counter(
            "nvidia_dra_slice_writes", "ResourceSlices written to the API server.", "operation"
        )
        self._publish_errors = self._counter(
            "nvidia_dra_publish_errors", "Failed attempts to publish."
        )
        self._dropped = self._counter(
            "nvidia_dra_slice_fields_dropped",
            "Fields of ResourceSlices that the API server did not store.",
        )
        self._quarantined = self._gauge(
            "nvidia_dra_quarantined_records", "Damaged claim records that were put aside."
        )
        for write in SliceWrite:
            self._writes.labels(self._driver, write)
        for state in ("ok", "sick"):
            self._gpus.labels(self._driver, state)

    def _declare_sharing(self) -> None:
        self._undo_errors = self._counter(
            "nvidia_dra_sharing_undo_errors",
            "Failed attempts to undo what a sharing strategy had set.",
            "strategy",
        )
        self._cleanups = self._gauge(
            "nvidia_dra_pending_cleanups",
            "Settings of sharing strategies that could not be undone yet.",
            "strategy",
        )
        self._share_config = self._gauge(
            "nvidia_dra_share_config_valid",
            "1, or 0 while the node's newest share config cannot be used.",
        )
        self._share_config.labels(self._driver).set(1)
        self._limits_lost = self._gauge(
            "nvidia_dra_memory_limits_not_in_force",
            "Claims whose GPU memory limits on control groups could not be set again.",
        )
        self._over_limit = self._counter(
            "nvidia_dra_memory_over_limit",
            "Containers with more GPU memory than their limit: reported, ended, or failed to end.",
            "action",
        )
        for action in ("reported", "ended", "failed"):
            self._over_limit.labels(self._driver, action)

    def _declare_health(self) -> None:
        self._conditions = self._gauge(
            "nvidia_dra_gpu_health_conditions",
            "Present conditions of GPUs and MIG devices.",
            "cause",
            "severity",
        )
        self._xids = self._counter(
            "nvidia_dra_xids", "XIDs that GPUs reported, including those of programs."
        )

    def request(self, operation: Operation) -> AbstractContextManager[None]:
        """Count one claim in progress."""
        return self._now[operation].track_inprogress()

    def request_succeeded(self, operation: Operation, seconds: float) -> None:
        """Count one claim that succeeded."""
        self._succeeded[operation].inc()
        self._durations[operation].observe(seconds)

    def request_failed(self, operation: Operation) -> None:
        """Count one claim that failed."""
        self._errors[operation].labels(self._driver, f"{operation}_devices").inc()

    def registered(self, yes: bool) -> None:
        """Note the kubelet's answer to the registration."""
        self._registered.labels(self._driver).set(int(yes))

    def gpus(self, *, ok: int, sick: int) -> None:
        """Note one scan of the machine."""
        self._gpus.labels(self._driver, "ok").set(ok)
        self._gpus.labels(self._driver, "sick").set(sick)

    def published(self, *, slices: int, devices: int) -> None:
        """Note that the API server now has these slices."""
        self._slices.labels(self._driver).set(slices)
        self._published.labels(self._driver).set(devices)
        self._publish_time.labels(self._driver).set_to_current_time()

    def slice_written(self, write: SliceWrite) -> None:
        """Count one write to the API server."""
        self._writes.labels(self._driver, write).inc()

    def publish_failed(self) -> None:
        """Count one failed attempt."""
        self._publish_errors.labels(self._driver).inc()

    def fields_dropped(self, count: int) -> None:
        """Count fields that the API server dropped."""
        self._dropped.labels(self._driver).inc(count)

    def watch_prepared(self, count: Callable[[], Mapping[DeviceType, int]]) -> None:
        """Ask `count` at each scrape how many devices are prepared, by type."""
        name = "nvidia_dra_prepared_devices"
        text = "Devices prepared for claims on this node."

        def samples() -> Iterator[_Sample]:
            counts = count()
            for kind in DeviceType:
                yield name, (self._node, self._driver, kind), float(counts.get(kind, 0))

        labels = ("node", "driver", "device_type")
        self._registry.register(_AtScrape([(name, text, labels)], samples))

    def watch_silence(self, seconds: Callable[[], Mapping[str, float]]) -> None:
        """Ask `seconds` at each scrape for how long each GPU has not answered NVML."""
        name = "nvidia_dra_nvml_silent_seconds"
        text = "How long NVML has not answered about a GPU; 0 while it does."

        def samples() -> Iterator[_Sample]:
            for gpu, value in seconds().items():
                yield name, (self._driver, gpu), value

        self._registry.register(_AtScrape([(name, text, ("driver", "gpu"))], samples))

    def watch_usage(self, series: Callable[[], Iterable[UsageSeries]]) -> None:
        """Ask `series` at each scrape who uses the GPUs."""
        gauges = [(use.full_name, use.value[1], ("driver", *use.value[2])) for use in UsageMetric]

        def samples() -> Iterator[_Sample]:
            for sample in series():
                yield sample.metric.full_name, (self._driver, *sample.labels), sample.value

        self._registry.register(_AtScrape(gauges, samples))

    def watch_quarantined(self, count: Callable[[], int]) -> None:
        """Ask `count` at each scrape how many records are in quarantine."""
        self._quarantined.labels(self._driver).set_function(count)

    def watch_share_config(self, is_valid: Callable[[], bool]) -> None:
        """Ask `is_valid` at each scrape whether the newest share config is in use."""
        self._share_config.labels(self._driver).set_function(is_valid)

    def watch_memory_limits(self, not_in_force: Callable[[], int]) -> None:
        """Ask `not_in_force` at each scrape for how many claims memory limits are not in force."""
        self._limits_lost.labels(self._driver).set_function(not_in_force)

    def over_limit(self, action: str) -> None:
        """Count a container with more memory than its limit: reported, ended or failed."""
        self._over_limit.labels(self._driver, action).inc()

    def xid_heard(self) -> None:
        """Count one XID that a GPU reported."""
        self._xids.labels(self._driver).inc()

    def watch_conditions(
        self,
        causes: Iterable[str],
        severities: Sequence[str],
        count: Callable[[], Mapping[tuple[str, str], int]],
    ) -> None:
        """Ask `count` at each scrape how much is wrong with GPUs, by cause and severity."""
        for cause in causes:
            for severity in severities:
                gauge = self._conditions.labels(self._driver, cause, severity)
                gauge.set_function(partial(_count_of, count, (str(cause), str(severity))))

    def undo_failed(self, strategy: str) -> None:
        """Count one failed attempt to undo what a sharing strategy had set."""
        self._undo_errors.labels(self._driver, strategy).inc()

    def watch_sharing(
        self, strategies: Iterable[str], count_cleanups: Callable[[], Mapping[str, int]]
    ) -> None:
        """Ask `count_cleanups` at each scrape how much is still to be undone, by strategy."""
        for strategy in strategies:
            self._undo_errors.labels(self._driver, strategy)
            gauge = self._cleanups.labels(self._driver, strategy)
            gauge.set_function(partial(_count_of, count_cleanups, strategy))


class MpsMetrics(_Registered):
    """The metrics of the MPS supervisor, a separate process. Safe to use from any thread."""

    def __init__(self, *, driver: str, version: str) -> None:
        super().__init__(driver)
        self._domains = self._gauge(
            "nvidia_dra_mps_domains", "MPS domains on this node, by state.", "state"
        )
        self._deaths = self._counter(
            "nvidia_dra_mps_daemon_deaths",
            "MPS control daemons that died by themselves; their clients lost their work.",
        )
        self._declare_build(version)

    def daemon_died(self) -> None:
        """Count one daemon that died by itself."""
        self._deaths.labels(self._driver).inc()

    def watch_domains(
        self, count: Callable[[], Mapping[str, int]], *, states: Sequence[str]
    ) -> None:
        """Ask `count` at each scrape how many domains are in each of the states."""
        for state in states:
            gauge = self._domains.labels(self._driver, state)
            gauge.set_function(partial(_count_of, count, state))


def _count_of(count: Callable[[], Mapping[T, int]], key: T) -> float:
    return count().get(key, 0)


_Sample = tuple[str, Sequence[str], float]
"""The name of a metric, the values of its labels, and its own."""


class _AtScrape(Collector):
    """Gauges whose values are asked for at each scrape, so that none is ever stale."""

    def __init__(
        self,
        gauges: Sequence[tuple[str, str, Sequence[str]]],
        samples: Callable[[], Iterable[_Sample]],
    ) -> None:
        self._gauges, self._samples = gauges, samples

    def describe(self) -> Iterator[GaugeMetricFamily]:
        return iter(self._families().values())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        families = self._families()
        for name, labels, value in self._samples():
            families[name].add_metric(labels, value)
        yield from families.values()

    def _families(self) -> dict[str, GaugeMetricFamily]:
        families = (GaugeMetricFamily(name, text, labels=keys) for name, text, keys in self._gauges)
        return {family.name: family for family in families}
