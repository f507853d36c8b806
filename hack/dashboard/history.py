"""Six hours of a made-up fleet, as a Prometheus would have scraped them.

In: nothing; the same comes out each time. Out: samples in OpenMetrics with times. Every one goes
through the driver's own `Metrics` and `UsageSeries`, so that names, labels and buckets are those of
the driver. What happens: pods come and go; a GPU of node-4 falls off the bus and comes back after a
reboot; memory of node-2 waits for a reset; programs of node-3 make XIDs; an MPS daemon dies.
"""

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from wsgiref.util import setup_testing_defaults

from dra_driver.health.findings import Cause, Severity
from dra_driver.mps.domain import State
from dra_driver.ops.metrics import DeviceType, Metrics, MpsMetrics, Operation, SliceWrite
from dra_driver.ops.usage_metrics import UsageMetric, UsageSeries

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

BEGIN = 1772431200.0  # 2026-03-02 06:00 UTC
HOURS = 6
END = BEGIN + HOURS * 3600
STEP = 60.0
GIB = float(1 << 30)
DRIVER = "gpu.nvidia.com"
GPUS = 8
PODS = (
    ("team-a", "train-0", "trainer", 1, 0, 79.0, None),
    ("team-a", "train-1", "trainer", 1, 1, 79.0, None),
    ("team-b", "infer-x7", "server", 2, 0, 19.9, 19.9),
    ("team-b", "infer-k2", "server", 2, 0, 11.0, 19.9),
    ("team-b", "embed-p4", "server", 2, 0, 4.2, 19.9),
    ("team-c", "notebook-3", "jupyter", 3, 2, 9.5, 19.5),
    ("team-c", "notebook-5", "jupyter", 3, 3, 17.9, 19.5),
    ("team-d", "sweep-11", "worker", 4, 3, 52.0, None),
    ("team-d", "idle-0", "shell", 5, 5, 0.0, None),
)
"""Namespace, pod, container, node, GPU, GiB at the most, GiB that it may have."""


@dataclass(slots=True)
class Node:
    """A node, its driver and its MPS supervisor."""

    number: int
    chance: random.Random
    hour: float = 0.0
    prepared: int = 4
    use: list[UsageSeries] = field(default_factory=list)
    metrics: Metrics = field(init=False)
    mps: MpsMetrics = field(init=False)

    def __post_init__(self) -> None:
        """Have it say from the start what it says later."""
        version = "0.1.0" if self.number < 5 else "0.0.9"
        self.metrics = Metrics(driver=DRIVER, node=self.name, version=version)
        self.mps = MpsMetrics(driver=DRIVER, version=version)
        self.metrics.watch_prepared(self._by_type)
        self.metrics.watch_silence(self._silence)
        self.metrics.watch_ailments(tuple(Cause), tuple(Severity), self._ailments)
        self.metrics.watch_usage(lambda: self.use)
        self.metrics.watch_sharing(("TimeSlicing", "MPS", "MIG"), dict)
        self.metrics.watch_quarantined(lambda: 0)
        self.metrics.watch_memory_limits(lambda: 0)
        self.mps.watch_domains(self._domains, states=tuple(State))
        self.metrics.registered(yes=True)
        self.metrics.slice_written(SliceWrite.CREATE)

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    @property
    def is_lost(self) -> bool:
        """Whether one of its GPUs is off the bus now."""
        return self.number == 4 and 2.0 <= self.hour < 3.5

    def live(self, hour: float) -> None:
        """Let some time pass."""
        was_lost, self.hour = self.is_lost, hour
        busy = 0.25 + 0.5 * math.sin(math.pi * hour / HOURS) ** 2
        for operation in Operation:
            for _ in range(int(self.chance.random() < busy) * self.chance.randint(1, 3)):
                self.metrics.request_succeeded(operation, self._seconds(operation))
        self.prepared = round(2 + 6 * busy + self.chance.random())
        self.metrics.gpus(ok=GPUS - self.is_lost, sick=int(self.is_lost))
        self.metrics.published(slices=2, devices=self._offered())
        if self.is_lost != was_lost:
            self.metrics.slice_written(SliceWrite.UPDATE)
            if self.is_lost:
                self.metrics.xid_heard()
        if self.is_lost and hour < 2.2:
            self.metrics.request_failed(Operation.PREPARE)
        if self.number == 3 and 4.2 < hour < 4.9 and self.chance.random() < 0.3:
            self.metrics.xid_heard()
        if self.number == 2 and 5.0 <= hour < 5.0 + STEP / 3600:
            self.mps.daemon_died()
        self.use = list(self._uses())

    def _seconds(self, operation: Operation) -> float:
        makes_mig = self.number == 3 and operation is Operation.PREPARE
        usual = 1.1 if makes_mig and self.chance.random() < 0.4 else 0.022
        return usual * self.chance.lognormvariate(0, 0.5)

    def _offered(self) -> int:
        return GPUS * {3: 19, 2: 4}.get(self.number, 1)

    def _by_type(self) -> Mapping[DeviceType, int]:
        kind = DeviceType.MIG if self.number == 3 else DeviceType.GPU
        return {kind: self.prepared}

    def _silence(self) -> Mapping[str, float]:
        quiet = 2.0 <= self.hour < 2.1 and self.number == 4
        return {"nvml": 0.0, "3": 3600 * (self.hour - 2.0) if quiet else 0.0}

    def _ailments(self) -> Mapping[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}
        if self.is_lost:
            found[Cause.XID, Severity.LOSS] = found[Cause.LOST, Severity.LOSS] = 1
        if self.number == 2 and self.hour > 1.2:
            found[Cause.ROW_REMAP, Severity.WARNING] = 1
        if self.number == 5 and 3.8 < self.hour < 5.1:
            found[Cause.SLOWDOWN, Severity.WARNING] = 2
        if self.number == 1 and self.hour > 5.3:
            found[Cause.RECOVERY, Severity.FAULT] = 1
        return found

    def _domains(self) -> Mapping[str, int]:
        if self.number != 2:
            return {}
        restarting = 5.0 <= self.hour < 5.1
        return {State.READY: 2 - restarting, State.RESTARTING: int(restarting)}

    def _uses(self) -> Iterator[UsageSeries]:
        taken: dict[int, float] = {}
        for seat, (namespace, pod, container, node, gpu, most, limit) in enumerate(PODS):
            if node != self.number or (gpu == 3 and self.is_lost):
                continue
            grown = 1 - math.exp(-max(self.hour - 0.4 * seat, 0.0) * 2.5)
            memory = most * grown * GIB * (1 + 0.01 * math.sin(9 * self.hour + seat))
            memory = min(memory, (limit or 79.6) * GIB)
            device = f"gpu-{gpu}" if node != 3 else f"gpu-{gpu}-mig-2g20gb-14-0"
            place = (str(gpu), device, f"GPU-{node}-{gpu}")
            labels = (namespace, pod, container, f"{namespace}/{pod}", *place)
            taken[gpu] = taken.get(gpu, 0.0) + memory
            yield _one(UsageMetric.CONTAINER_MEMORY, labels, memory)
            yield _one(UsageMetric.CONTAINER_PROCESSES, labels, float(most > 0))
            if limit is not None:
                yield _one(UsageMetric.CONTAINER_LIMIT, labels, limit * GIB)
            if node != 3:
                share = 1.0 if limit is None else 0.3
                busy = share * (0.75 + 0.2 * math.sin(7 * self.hour + seat)) if most else 0.0
                yield _one(UsageMetric.CONTAINER_SM, labels, busy)
        yield from self._of_gpus(taken)

    def _of_gpus(self, taken: Mapping[int, float]) -> Iterator[UsageSeries]:
        for gpu in range(GPUS):
            answers = not (gpu == 3 and self.is_lost)
            yield _one(UsageMetric.UP, (str(gpu),), float(answers))
            if not answers:
                continue
            place = (str(gpu), f"gpu-{gpu}", f"GPU-{self.number}-{gpu}")
            yield _one(UsageMetric.MEMORY, place, taken.get(gpu, 0.0) + 0.5 * GIB)
            yield _one(UsageMetric.MEMORY_TOTAL, place, 79.6 * GIB)
            if self.number != 3:
                busy = 0.8 + 0.15 * math.sin(5 * self.hour + gpu) if taken.get(gpu) else 0.0
                yield _one(UsageMetric.BUSY, place, busy)
            if self.number == 2 and gpu == 0:
                yield _one(UsageMetric.OTHER_MEMORY, (*place, "mps"), 0.9 * GIB)
        yield _one(UsageMetric.LEFT_OUT, (), 0.0)


def _one(metric: UsageMetric, labels: tuple[str, ...], value: float) -> UsageSeries:
    return UsageSeries(metric=metric, labels=labels, value=value)


def lines() -> Iterator[str]:
    """Each sample of the fleet, and the end."""
    chance = random.Random(14)  # noqa: S311 (the same each time)
    nodes = [Node(number, chance) for number in range(1, 6)]
    for number in range(int((END - BEGIN) / STEP) + 1):
        for node in nodes:
            node.live(number * STEP / 3600)
            for pod, app in (("driver", node.metrics), ("mps-supervisor", node.mps)):
                target = {"cluster": "lab", "instance": f"{node.name}:{pod}", "node": node.name}
                yield from scraped(app.wsgi_app, target, BEGIN + number * STEP)
    yield "# EOF\n"


def scraped(app: "WSGIApplication", target: Mapping[str, str], at: float) -> Iterator[str]:
    """The driver's own metrics, as a scrape with these target labels stores them."""
    environ: dict[str, object] = {}
    setup_testing_defaults(environ)
    text = b"".join(app(environ, lambda *_: lambda _: None)).decode()
    for line in text.splitlines():
        head, _, value = line.rpartition(" ")
        if not head.startswith("nvidia_dra_") or "_created{" in head:
            continue
        # Where both have a label, what Prometheus keeps of it is the target's.
        added = ",".join(f'{key}="{one}"' for key, one in target.items() if f'{key}="' not in head)
        yield f"{head.removesuffix('}')},{added}}} {value} {at}\n"
