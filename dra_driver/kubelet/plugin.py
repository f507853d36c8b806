"""The driver as the kubelet sees it: both sockets, in the right order, kept alive.

The DRA socket listens before the registration socket appears, because the kubelet may call at once.
When the driver stops, running calls end first: removing the registration socket deregisters a
driver, and a kubelet that notices this drops its running calls. That takes it a moment. Calls that
it sends meanwhile are served, and only then does the DRA socket close. Registration has its own
server, and the liveness probe its own threads: whatever the claims are doing, a kubelet waits only
one second for GetInfo, and a driver that waits is not dead. If a socket's file was removed (a
kubelet root that was cleaned), the socket is made again: calls on the old one continue, and health
streams begin again on the new one. A socket that cannot be made because its disk is full or
read-only is made when the disk allows it.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import grpc
import structlog
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import HealthServicer

from dra_driver.devices.names import DRIVER_NAME
from dra_driver.errors import DriverError, SetupError, TransientError, UnavailableError
from dra_driver.host.worker import LogOnce, Worker
from dra_driver.kubelet.health_stream import HEALTH_SERVICES, HealthStream
from dra_driver.kubelet.protos import pluginregistration_v1_pb2 as messages
from dra_driver.kubelet.protos import pluginregistration_v1_pb2_grpc as rpc
from dra_driver.kubelet.rivals import Rivals
from dra_driver.kubelet.service import ClaimCalls, DraPlugin
from dra_driver.kubelet.sockets import SocketPaths, SocketServer, is_live, remove_dead_sockets

PLUGIN_TYPE = "DRAPlugin"
SUPPORTED_VERSIONS = ("v1.DRAPlugin", *HEALTH_SERVICES)
"""What every supported kubelet knows; it ignores what it does not know.

These are not names of gRPC services.
"""

CLAIM_WORKERS = 64
"""Prepares, one per pod, that run at once, and as many unprepares; each may wait for 40 s."""

OTHER_WORKERS = 2
"""For registration, and for the probe's question on the service socket."""

OLD_CALLS_SECONDS = 45.0
"""The time for running calls when their socket is made again: as long as a kubelet waits."""

HEALTH_SECONDS = 2.0
"""The time for the health stream to end; nothing in it has to be completed."""

QUIET_LOOK_SECONDS = 0.02
"""Between looks whether calls are still running."""

ONE_DRIVER = (
    "only one driver of this name may run on a node, NVIDIA's own included: remove the other, or "
    "set --pod-uid if two pods of this driver overlap during a rolling update"
)

log = structlog.get_logger()


class RegistrationService(rpc.RegistrationServicer):
    """Tells the kubelet's plugin watcher which driver this is and where it serves.

    Answers come from memory, because the kubelet waits only one second for GetInfo, and neither
    GPUs nor the API server may delay it. After a failure it tries again from the start, with a
    back-off of up to two minutes. (k8s.io/kubernetes pkg/kubelet/pluginmanager/operationexecutor,
    pkg/kubelet/cm/dra/plugin.)
    """

    def __init__(self, service_socket: Path, on_status: Callable[[bool], None]) -> None:
        self._info = messages.PluginInfo(
            type=PLUGIN_TYPE,
            name=DRIVER_NAME,
            endpoint=str(service_socket),
            supported_versions=SUPPORTED_VERSIONS,
        )
        self._on_status = on_status

    def attach(self, server: grpc.Server) -> None:
        """Add this service to a server that has not started."""
        rpc.add_RegistrationServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    def GetInfo(  # noqa: N802
        self, request: messages.InfoRequest, context: grpc.ServicerContext
    ) -> messages.PluginInfo:
        """Answer what this plugin is."""
        del request, context
        log.debug("registration requested", driver=DRIVER_NAME, endpoint=self._info.endpoint)
        return self._info

    def NotifyRegistrationStatus(  # noqa: N802
        self, request: messages.RegistrationStatus, context: grpc.ServicerContext
    ) -> messages.RegistrationStatusResponse:
        """Note how the registration went; a refusal is answered with an error.

        Kubernetes' own plugin library does the same. The socket stays, and the kubelet retries.
        """
        self._on_status(request.plugin_registered)
        if not request.plugin_registered:
            log.error(
                "registration refused by the kubelet", driver=DRIVER_NAME, reason=request.error
            )
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"registration refused: {request.error}"
            )
        log.info("driver registered with the kubelet", driver=DRIVER_NAME)
        return messages.RegistrationStatusResponse()


class KubeletPlugin:
    """The gRPC server of both sockets, and the thread that watches these."""

    def __init__(
        self,
        calls: ClaimCalls,
        paths: SocketPaths,
        health: HealthStream,
        *,
        on_status: Callable[[bool], None],
        check_seconds: float = 2.0,
    ) -> None:
        self._paths = paths
        self.rivals = Rivals(paths.service)
        self._calls = calls
        self._health = health
        self._on_status = on_status
        # A socket that is made again has the same threads: no more run at once.
        self._plugin = DraPlugin(calls, CLAIM_WORKERS)
        self._server = SocketServer(
            # In this order: a kubelet that registers the driver calls the service at once.
            (paths.service, paths.registration),
            (
                self._plugin.attach,
                health.attach,
                # Lets the service socket answer that this process serves it.
                partial(health_pb2_grpc.add_HealthServicer_to_server, HealthServicer()),
                RegistrationService(paths.service, self._note_status).attach,
            ),
            name="service",
            workers=OTHER_WORKERS,
        )
        self._lost: set[Path] = set()
        self._once = LogOnce()
        self.is_open = False
        self._is_closed = False
        self.is_registered = False
        """Whether the kubelet's last answer was that it registered this driver."""
        self._watch = _SocketWatch(self._look, check_seconds)

    def start(self) -> None:
        """Serve, then appear to the kubelet, as soon as the disk is neither full nor read-only.

        Raises SetupError if a socket cannot be made.
        """
        self._remove_dead()
        for live in filter(is_live, (self._paths.service, self._paths.registration)):
            log.warning("socket of a running driver replaced", socket=str(live), advice=ONE_DRIVER)
        try:
            self._open()
        except TransientError as error:
            self._tell(error)
        self._watch.start()

    def _remove_dead(self) -> None:
        for dead in remove_dead_sockets(self._paths):
            log.info("dead socket removed", socket=str(dead))

    def _open(self) -> None:
        if self.rivals.foreign() == self._paths.service:
            raise TransientError(
                f"NVIDIA's DRA driver runs on this node, and listens on {self._paths.service}:"
                " remove it; this is retried"
            )
        self.rivals.appear()
        try:
            self._server.start()
        except DriverError:
            self.rivals.leave()
            raise
        self.is_open = True
        log.info(
            "sockets opened",
            driver=DRIVER_NAME,
            service=str(self._paths.service),
            registration=str(self._paths.registration),
        )

    def _note_status(self, registered: bool) -> None:
        self.is_registered = registered
        if registered:
            self.rivals.registered()
        self._on_status(registered)

    def check_may_publish(self) -> None:
        """Raise UnavailableError if the kubelet calls another driver of this node instead."""
        if self._server.is_taken_over(self._paths.service):
            raise UnavailableError(f"another driver listens on {self._paths.service}: {ONE_DRIVER}")
        self.rivals.check_may_publish()

    def stop(self, grace: float, *, delay: float = 0.0) -> tuple[str, ...]:
        """Let running calls end, deregister, and refuse calls once the kubelet has noticed.

        A kubelet that knows another, newer instance of this driver already calls that one.
        Otherwise it finds no driver from then on, and tries again. Running calls get `grace`
        seconds to finish. After deregistering, calls are served for `delay` seconds more, because
        the kubelet looks for removed sockets once a second; not if no kubelet has registered this
        driver. Returns the claims that were still in progress then; what is prepared stays
        prepared.
        """
        end = time.monotonic() + grace
        self._watch.stop(grace)
        self._is_closed = True
        while self._calls.running() and time.monotonic() < end:
            time.sleep(QUIET_LOOK_SECONDS)
        self._server.leave(self._paths.registration)
        if self.is_registered:
            time.sleep(delay)
            end += delay
        self._health.stop(HEALTH_SECONDS)
        left = max(end - time.monotonic(), 0.0)
        self._close(left)
        self._plugin.end()
        return self._calls.running()

    def _close(self, seconds: float) -> None:
        self._server.stop(seconds).wait(timeout=seconds + 1)
        self.rivals.leave()
        log.info("sockets closed", driver=DRIVER_NAME)

    def _look(self) -> None:
        for path in filter(self._server.is_taken_over, self._server.paths):
            if path not in self._lost:
                self._lost.add(path)
                log.error("socket taken over", socket=str(path), advice=ONE_DRIVER)
        try:
            if self.is_open:
                self._renew_missing()
            else:
                self._remove_dead()
                self._open()
            self._once.forget()
        except (SetupError, TransientError) as error:
            self._tell(error)
        if self._is_closed:  # `stop` had no time to wait for this look
            self._close(0)

    def _tell(self, error: DriverError) -> None:
        """Log why a socket is missing; once per cause, because it may be there at the next look."""
        if self._once.is_new(str(error)):
            log.error("socket not made", error=str(error))

    def _renew_missing(self) -> None:
        if self._server.is_missing():
            self._server.renew(OLD_CALLS_SECONDS)
            self.rivals.appear()
            self._health.end_former()
            log.warning("sockets made again", reason="a file was removed")


class _SocketWatch(Worker):
    """Checks the sockets at an interval."""

    def __init__(self, look: Callable[[], None], seconds: float) -> None:
        super().__init__("socket-watch")
        self._look = look
        self._seconds = seconds

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            self._look()
