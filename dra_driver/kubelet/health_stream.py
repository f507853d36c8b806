"""The health stream: reports the health of claims' devices to kubelets, for the status of pods.

Serves DRAResourceHealth in versions v1 and v1alpha1, with one stream for each kubelet that asks.
Each message has all devices. It is sent at once when one changes, and every ten seconds: a kubelet
treats a device that was not reported for 30 s as unknown, and forgets everything when any stream of
the driver ends, such as that of an older instance in a rolling update. (k8s.io/kubernetes
pkg/kubelet/cm/dra/manager.go, healthinfo.go; KEP-4680.) A message has the state at that moment: a
kubelet that reads slowly misses what happened in between. A stream has a thread, so only a few are
kept, the newest ones; a stream that accepts no message for a while ends. If the state can no longer
be found out, nothing is sent, and the kubelet reports that in time.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from types import SimpleNamespace
from typing import Any

import grpc
import structlog
from msgspec import Struct

from dra_driver.claims.report.device_health import HealthState, Reported
from dra_driver.errors import DriverError
from dra_driver.host.worker import LogOnce, Worker
from dra_driver.kubelet.protos import dra_health_v1_pb2 as v1
from dra_driver.kubelet.protos import dra_health_v1_pb2_grpc as v1_rpc
from dra_driver.kubelet.protos import dra_health_v1alpha1_pb2 as v1alpha1
from dra_driver.kubelet.protos import dra_health_v1alpha1_pb2_grpc as v1alpha1_rpc
from dra_driver.kubelet.service import on_threads

HEALTH_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""The names for registration; a kubelet of 1.37 or newer asks for no others."""

TIMEOUT_SECONDS = 30
"""After this, a device that is not reported counts as unknown, also with kubelets of 1.34."""

MOST_STREAMS = 4
"""Open at once; a kubelet has one for each registration."""

log = structlog.get_logger()

Request = v1.NodeWatchResourcesRequest | v1alpha1.NodeWatchResourcesRequest

_STATUS = {
    HealthState.HEALTHY: v1.HealthStatus.HEALTHY,
    HealthState.UNHEALTHY: v1.HealthStatus.UNHEALTHY,
    HealthState.UNKNOWN: v1.HealthStatus.UNKNOWN,
}


class StreamTiming(Struct, frozen=True, kw_only=True):
    """How often to do what, in seconds."""

    resend: float = 10.0
    """Between messages while nothing changes."""

    least: float = 0.1
    """Between reports, however often something may have changed."""

    stuck: float = 30.0
    """How long a kubelet may leave a message unread."""


class _Stream(Struct, eq=False):
    """One kubelet that listens. All changes are made under the lock of all streams.

    `server` is the number of its server, and `sent` that of the report that was sent last.
    `handed_at` is when the message that is being sent was started; None if there is none.
    """

    context: grpc.ServicerContext
    server: int
    sent: int = 0
    handed_at: float | None = None
    is_over: bool = False


class HealthStream(Worker):
    """Both versions of the service, and the thread that collects what to report."""

    def __init__(
        self,
        report: Callable[[], Reported],
        *,
        wait_ready: Callable[[float], bool] = lambda _seconds: True,
        clock: Callable[[], float] = time.monotonic,
        timing: StreamTiming = StreamTiming(),
    ) -> None:
        """Take what is reported; nothing runs yet.

        `report` may raise DriverError. `wait_ready` waits so many seconds for what a first report
        needs, and returns whether it is available. The clock is monotonic, in seconds.
        """
        super().__init__("health-report")
        self._report = report
        self._wait_ready = wait_ready
        self._clock = clock
        self._timing = timing
        self._changed = threading.Condition()
        self._streams: list[_Stream] = []
        self._servers = 0
        """How many servers have this service."""
        self._first_served = 0
        """The number of the first server whose streams do not end."""
        self._reported: Reported = {}
        self._number = 0
        self._once = LogOnce()
        # Two more, so that one that is to end the oldest stream never waits for its thread.
        self._threads = futures.ThreadPoolExecutor(
            MOST_STREAMS + 2, thread_name_prefix="health-stream"
        )

    def attach(self, server: grpc.Server) -> None:
        """Add both versions of the service to a server that has not started."""
        with self._changed:
            self._servers += 1
            number = self._servers
        for version, add in (
            (v1, v1_rpc.add_DRAResourceHealthServicer_to_server),
            (v1alpha1, v1alpha1_rpc.add_DRAResourceHealthServicer_to_server),
        ):
            method = on_threads(self._threads, self._method(version, number))
            add(SimpleNamespace(NodeWatchResources=method), server)  # type: ignore[no-untyped-call]

    def end_former(self) -> None:
        """End the streams of all servers except the newest, which replaces them.

        A kubelet opens a new stream within seconds. If the old one ended later, the kubelet would
        then forget what the new one has reported.
        """
        with self._changed:
            self._first_served = self._servers
            for stream in self._streams:
                if stream.server < self._first_served:
                    self._end(stream)

    def stop(self, timeout: float) -> bool:
        """End all streams, and the thread, waiting at most so many seconds."""
        self._stop.set()
        with self._changed:
            for stream in self._streams:
                self._end(stream)
        ended = super().stop(timeout)
        self._threads.shutdown(wait=False)
        return ended

    def _run(self) -> None:
        while not self._stop.is_set() and not self._wait_ready(1.0):
            pass
        last = float("-inf")
        while not self._stop.is_set():
            reported = self._collect()
            is_due = self._clock() - last >= self._timing.resend
            with self._changed:
                if reported is not None and (is_due or reported != self._reported):
                    last = self._clock()
                    self._reported = reported
                    self._number += 1
                    self._changed.notify_all()
                self._end_stuck()
            self._stop.wait(self._timing.least)
            self._wait(max(0.0, last + self._timing.resend - self._clock()))

    def _collect(self) -> Reported | None:
        """Return what to report; None if that cannot be found out."""
        try:
            reported = self._report()
        except DriverError as error:
            if self._once.is_new(str(error)):
                log.warning("device health not reported", reason=str(error))
            self._stop.wait(1.0)
            return None
        self._once.forget()
        return reported

    def _end_stuck(self) -> None:
        """End the streams whose kubelet reads no messages; the caller holds the lock."""
        for stream in self._streams:
            since = stream.handed_at
            if since is not None and self._clock() - since >= self._timing.stuck:
                log.warning("health stream ended", reason="the kubelet takes no message")
                self._end(stream)

    def _end(self, stream: _Stream) -> None:
        """End a stream; the caller holds the lock."""
        stream.is_over = True
        if stream.handed_at is not None:
            # Its thread waits until the message is taken.
            stream.context.cancel()  # type: ignore[no-untyped-call]  # grpc has no types
        self._changed.notify_all()

    def _method(
        self, version: Any, server: int
    ) -> Callable[[Request, grpc.ServicerContext], Iterator[Any]]:
        def watch(request: Request, context: grpc.ServicerContext) -> Iterator[Any]:
            del request
            stream = _Stream(context, server)
            if self._open(stream):
                try:
                    while (reported := self._next(stream)) is not None:
                        yield _message(version, reported)
                finally:
                    self._close(stream)

        return watch

    def _open(self, stream: _Stream) -> bool:
        """Add a kubelet, and if there are too many, remove the one that has listened longest."""
        if not stream.context.add_callback(lambda: self._gone(stream)):
            return False  # it has gone already
        with self._changed:
            if stream.server < self._first_served:
                return False  # it came while its server was replaced
            self._streams.append(stream)
            for old in self._streams[:-MOST_STREAMS]:
                self._end(old)
            listening = len(self._streams)
        log.debug("health stream opened", listening=listening)
        return True

    def _next(self, stream: _Stream) -> Reported | None:
        """Wait until there is something to send; return None when the stream has ended."""
        with self._changed:
            stream.handed_at = None
            self._changed.wait_for(
                lambda: stream.is_over or self._stop.is_set() or stream.sent < self._number
            )
            if stream.is_over or self._stop.is_set():
                return None
            stream.sent = self._number
            stream.handed_at = self._clock()
            return self._reported

    def _gone(self, stream: _Stream) -> None:
        with self._changed:
            stream.is_over = True
            self._changed.notify_all()

    def _close(self, stream: _Stream) -> None:
        with self._changed:
            self._streams.remove(stream)
        log.debug("health stream closed")


def _message(version: Any, reported: Reported) -> Any:
    now = int(time.time())  # noqa: TID251 (told)
    return version.NodeWatchResourcesResponse(
        devices=[
            version.DeviceHealth(
                device=version.DeviceIdentifier(pool_name=pool, device_name=device),
                health=_STATUS[health.state],
                last_updated_time=now,
                health_check_timeout_seconds=TIMEOUT_SECONDS,
                message=health.message,
            )
            for (pool, device), health in reported.items()
        ]
    )
