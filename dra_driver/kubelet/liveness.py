"""Liveness for the kubelet's gRPC probe: is the driver, seen from outside, still answering?

In: grpc.health.v1 Check on a TCP port, for service "" or "liveness". Out: SERVING when the
driver's own sockets answer GetInfo and an empty NodePrepareResources within a few seconds; that is
the way a kubelet takes, so a removed socket or stuck workers are noticed. A check changes nothing.
(NVIDIA's driver answers the same probe; grpc health checking protocol.)
"""

from concurrent import futures

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dra_driver.devices.names import DRIVER_NAME
from dra_driver.errors import SetupError
from dra_driver.kubelet.protos import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    pluginregistration_v1_pb2,
    pluginregistration_v1_pb2_grpc,
)
from dra_driver.kubelet.sockets import SocketPaths

SERVICES = ("", "liveness")

CALL_SECONDS = 4.0
"""For each of the two calls; a probe is best given ten seconds in all."""

_WORKERS = 4

log = structlog.get_logger()


class Liveness(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Serves the probe on a TCP address until stopped."""

    def __init__(self, paths: SocketPaths, *, address: str, port: int) -> None:
        """Take the sockets to try and the address; port 0 lets the system choose one."""
        self._paths = paths
        self._host = f"[{address}]" if ":" in address else address
        self._wanted_port = port
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
                f"unknown service {request.service!r}: ask for 'liveness' or ''",
            )
        fault = self._fault()
        if fault and self._well:
            log.error("liveness lost", reason=fault)
        elif not fault and not self._well:
            log.info("liveness regained")
        self._well = not fault
        status = health_pb2.HealthCheckResponse
        return status(status=status.NOT_SERVING if fault else status.SERVING)

    def _fault(self) -> str:
        """Return what is wrong, or nothing. Channels are made anew: no back-off hides a socket."""
        try:
            with grpc.insecure_channel(f"unix:{self._paths.registration}") as channel:
                registration = pluginregistration_v1_pb2_grpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
                info = registration.GetInfo(
                    pluginregistration_v1_pb2.InfoRequest(), timeout=CALL_SECONDS
                )
            with grpc.insecure_channel(f"unix:{self._paths.service}") as channel:
                plugin = dra_v1_pb2_grpc.DRAPluginStub(channel)  # type: ignore[no-untyped-call]
                plugin.NodePrepareResources(
                    dra_v1_pb2.NodePrepareResourcesRequest(), timeout=CALL_SECONDS
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
