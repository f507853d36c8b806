"""The kubelet's gRPC probes: does the driver, seen from outside, still answer; is it registered?

In: grpc.health.v1 Check on a TCP port, for service "" or "liveness". Out: SERVING when the
driver's own sockets answer within a few seconds; that is the way a kubelet takes, so a removed
socket or a stuck process is noticed. Claims that wait are no reason to be restarted: the service
socket answers the probe on threads that no claim uses. Neither is a disk on which the sockets
cannot be made yet. For service "readiness" the kubelet has to have registered the driver as well:
a rolling update that waits for it stops no old driver before the kubelet calls the new one. A check
changes nothing.
(NVIDIA's driver answers the same probe; grpc health checking protocol.)
"""

from collections.abc import Callable
from concurrent import futures

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dra_driver.devices.names import DRIVER_NAME
from dra_driver.errors import SetupError
from dra_driver.kubelet.protos import (
    pluginregistration_v1_pb2,
    pluginregistration_v1_pb2_grpc,
)
from dra_driver.kubelet.sockets import SocketPaths

READINESS = "readiness"
SERVICES = ("", "liveness", READINESS)

CALL_SECONDS = 4.0
"""For each of the two calls; a probe is best given ten seconds in all."""

_WORKERS = 4

log = structlog.get_logger()


class SocketHealth(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Says on the service socket that this process answers there."""

    def attach(self, server: grpc.Server) -> None:
        """Add this service to a server that has not started."""
        health_pb2_grpc.add_HealthServicer_to_server(self, server)

    def Check(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """Answer at once."""
        del request, context
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)


class Liveness(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Serves the probe on a TCP address until stopped."""

    def __init__(
        self,
        paths: SocketPaths,
        *,
        address: str,
        port: int,
        are_open: Callable[[], bool] = lambda: True,
        is_registered: Callable[[], bool] = lambda: True,
    ) -> None:
        """Take the sockets to try and where to listen.

        Args:
            paths: of the sockets.
            address: an IP address; empty for all, of both families.
            port: 0 lets the system choose one.
            are_open: whether the sockets are there to be tried. While the disk does not let them
                be made, nobody is served by a restart.
            is_registered: whether the kubelet has taken the driver in.
        """
        self._paths = paths
        address = address or "::"
        self._host = f"[{address}]" if ":" in address else address
        self._wanted_port = port
        self._are_open = are_open
        self._is_registered = is_registered
        self._well = True
        self._server: grpc.Server | None = None
        self.port = 0

    def start(self) -> None:
        """Listen; `port` then holds the port.

        Raises:
            SetupError: the address cannot be had.
        """
        pool = futures.ThreadPoolExecutor(_WORKERS, thread_name_prefix="liveness")
        server = grpc.server(pool, options=(("grpc.so_reuseport", 0),))
        health_pb2_grpc.add_HealthServicer_to_server(self, server)
        try:
            self.port = server.add_insecure_port(f"{self._host}:{self._wanted_port}")
        except RuntimeError as error:
            raise SetupError(
                f"cannot listen on {self._host}:{self._wanted_port} for liveness probes ({error}); "
                "choose another --healthcheck-port or --healthcheck-address"
            ) from error
        server.start()
        self._server = server
        log.info("liveness opened", address=self._host, port=self.port)

    def stop(self) -> None:
        """Stop listening. Stopping twice is fine."""
        server, self._server = self._server, None
        if server is not None:
            server.stop(None).wait(timeout=CALL_SECONDS)

    def Check(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """Try both sockets as a kubelet would."""
        if request.service not in SERVICES:
            context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"unknown service {request.service!r}: ask for 'liveness', 'readiness' or ''",
            )
        fault = self._fault() if self._are_open() else ""
        if fault and self._well:
            log.error("liveness lost", reason=fault)
        elif not fault and not self._well:
            log.info("liveness regained")
        self._well = not fault
        well = not fault and (request.service != READINESS or self._is_registered())
        status = health_pb2.HealthCheckResponse
        return status(status=status.SERVING if well else status.NOT_SERVING)

    def _fault(self) -> str:
        """Return what is wrong, or nothing. Channels are made anew: no back-off hides a socket."""
        try:
            with grpc.insecure_channel(f"unix:{self._paths.registration}") as channel:
                registration = pluginregistration_v1_pb2_grpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
                info = registration.GetInfo(
                    pluginregistration_v1_pb2.InfoRequest(), timeout=CALL_SECONDS
                )
            with grpc.insecure_channel(f"unix:{self._paths.service}") as channel:
                health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=CALL_SECONDS
                )
        except grpc.RpcError as error:
            return _words(error)
        if info.name != DRIVER_NAME:
            return f"the registration socket answers for another driver, {info.name!r}"
        return ""


def _words(error: grpc.RpcError) -> str:
    # What a channel raises is a grpc.Call too, though the types do not say so.
    code, details = (getattr(error, name, lambda: "") for name in ("code", "details"))
    return f"{code()}: {details()}"
