"""Who uses the GPUs, for callers that ask often: one look serves all, and nobody waits for long.

In: what looks (usage/node.py), which gives up on GPUs that do not answer. Out: the latest look, if
it is at most a few seconds old. There is no look while nobody asks. Callers wait for the one that
looks up to the deadline, and then get no answer.

For metrics, a container has series for each device that it has processes on, and so has a pod that
has a device but no process there; what is not known has no series, rather than a zero. The number
of containers is limited: those with the least memory are left out.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import structlog

from dra_driver.errors import DriverError
from dra_driver.host.worker import LogOnce
from dra_driver.ops.metrics import UsageMetric, UsageSeries
from dra_driver.usage.model import DeviceUse, GpuUse, NodeUse, User, added

FRESH_SECONDS = 5.0
"""How old a look may be."""

DEADLINE_SECONDS = 5.0
"""How long a caller waits for a look; Prometheus gives a scrape ten seconds."""

MOST_CONTAINERS = 1000

log = structlog.get_logger()


class Sampler:
    """Keeps the latest look. For any thread."""

    def __init__(
        self,
        look: Callable[[], NodeUse],
        *,
        clock: Callable[[], float] = time.monotonic,
        fresh_seconds: float = FRESH_SECONDS,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._look = look
        self._clock = clock
        self._fresh_seconds = fresh_seconds
        self._deadline_seconds = deadline_seconds
        self._lock = threading.Lock()
        self._latest: tuple[float, NodeUse] | None = None  # when it was made, and the look
        self._once = LogOnce()

    def current(self) -> NodeUse | None:
        """Return who uses the GPUs, or used them some seconds ago; None if not known in time."""
        if not self._lock.acquire(timeout=self._deadline_seconds):
            return None
        try:
            if self._latest is None or self._clock() - self._latest[0] > self._fresh_seconds:
                self._latest = None
                self._latest = self._clock(), self._look()
            self._once.forget()
            return self._latest[1]
        except DriverError as error:
            if self._once.is_new(str(error)):
                log.warning("usage of gpus not known", reason=str(error))
            return None
        finally:
            self._lock.release()

    def series(self) -> Iterator[UsageSeries]:
        """Return who uses the GPUs, for a scrape."""
        return series(self.current())


def series(use: NodeUse | None, *, most: int = MOST_CONTAINERS) -> Iterator[UsageSeries]:
    """Return all series of a node; none if nothing is known."""
    if use is None:
        return
    for index in use.silent:
        yield UsageSeries(UsageMetric.UP, (str(index),), 0)
    users = [
        (gpu, device, user)
        for gpu in use.gpus
        for device in gpu.devices
        for user in device.users
        if user.pod_uid
    ]
    users.sort(key=lambda place: -(place[2].memory_bytes or 0))
    for gpu in use.gpus:
        yield UsageSeries(UsageMetric.UP, (str(gpu.load.index),), 1)
        for device in gpu.devices:
            yield from _of_device(gpu, device)
    yield from _together(
        each for gpu, device, user in users[:most] for each in _of_user(user, _place(gpu, device))
    )
    yield UsageSeries(UsageMetric.LEFT_OUT, (), max(len(users) - most, 0))


def _together(samples: Iterable[UsageSeries]) -> Iterator[UsageSeries]:
    """Return one series for those with the same labels, such as a container and its successor."""
    values: dict[tuple[UsageMetric, tuple[str, ...]], float] = {}
    for sample in samples:
        key = (sample.metric, tuple(sample.labels))
        before = values.get(key, 0.0)
        is_limit = sample.metric is UsageMetric.CONTAINER_LIMIT
        values[key] = max(before, sample.value) if is_limit else before + sample.value
    for (metric, labels), value in values.items():
        yield UsageSeries(metric, labels, value)


def _of_device(gpu: GpuUse, device: DeviceUse) -> Iterator[UsageSeries]:
    place = _place(gpu, device)
    if device.memory is not None:
        yield UsageSeries(UsageMetric.MEMORY, place, device.memory.used_bytes)
        yield UsageSeries(UsageMetric.MEMORY_TOTAL, place, device.memory.total_bytes)
    if gpu.load.busy is not None:  # never in MIG mode
        yield UsageSeries(UsageMetric.BUSY, place, gpu.load.busy)
    for owner, processes in (("mps", device.servers), ("host", device.others)):
        memory = added(process.memory_bytes for process in processes)
        if processes and memory is not None:
            yield UsageSeries(UsageMetric.OTHER_MEMORY, (*place, owner), memory)


def _of_user(user: User, place: Sequence[str]) -> Iterator[UsageSeries]:
    who = (user.namespace, user.pod or user.pod_uid, user.container or user.container_id[:13])
    labels = (*who, ",".join(user.claims), *place)
    if user.memory_bytes is not None:
        yield UsageSeries(UsageMetric.CONTAINER_MEMORY, labels, user.memory_bytes)
    if user.limit_bytes is not None:
        yield UsageSeries(UsageMetric.CONTAINER_LIMIT, labels, user.limit_bytes)
    if user.sm is not None:
        yield UsageSeries(UsageMetric.CONTAINER_SM, labels, user.sm)
    yield UsageSeries(UsageMetric.CONTAINER_PROCESSES, labels, len(user.processes))


def _place(gpu: GpuUse, device: DeviceUse) -> tuple[str, str, str]:
    return str(gpu.load.index), device.name, device.uuid
