"""Does the driver, seen from outside, still answer; has the kubelet registered it?

In: a question for "liveness" (or "") or "readiness". Out: what is wrong, or nothing. Alive is a
driver whose own sockets answer within a few seconds; that is the way a kubelet takes, so a removed
socket or a stuck process is noticed. Claims that wait are no reason to be restarted: the service
socket answers on threads that no claim uses. Neither is a disk on which the sockets cannot be made
yet. Ready is one that the kubelet has registered as well: a rolling update that waits for it stops
no old driver before the kubelet calls the new one. A check changes nothing. Whoever asks again
within a second gets the same answer, so questions cost next to nothing, however many there are.
"""

import threading
import time
from typing import Protocol

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dra_driver.devices.names import DRIVER_NAME
from dra_driver.kubelet.protos import (
    pluginregistration_v1_pb2,
    pluginregistration_v1_pb2_grpc,
)
from dra_driver.kubelet.sockets import SocketPaths

READINESS = "readiness"
SERVICES = ("", "liveness", READINESS)

CALL_SECONDS = 4.0
"""For each of the two calls; a probe is best given ten seconds in all."""

_FRESH_SECONDS = 1.0

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


class Plugin(Protocol):
    """What the sockets' owner knows of them.

    `is_open` is false while the disk does not let them be made: nobody is served by a restart.
    """

    is_open: bool
    is_registered: bool


class Health:
    """What probes are told, whichever way they ask."""

    def __init__(
        self, paths: SocketPaths, plugin: Plugin, *, fresh_seconds: float = _FRESH_SECONDS
    ) -> None:
        """Take the sockets to try, their owner, and for how long an answer of theirs counts."""
        self._paths = paths
        self._plugin = plugin
        self._fresh_seconds = fresh_seconds
        self._lock = threading.Lock()
        self._fault = ""
        self._tried: float | None = None

    def fault(self, service: str) -> str:
        """Return what keeps the driver from being alive, or from being ready; empty if it is.

        `service` is one of SERVICES.
        """
        fault = self._of_sockets() if self._plugin.is_open else ""
        if not fault and service == READINESS and not self._plugin.is_registered:
            return "the kubelet has not registered the driver: see the driver's log"
        return fault

    def _of_sockets(self) -> str:
        with self._lock:
            if self._tried is None or time.monotonic() >= self._tried + self._fresh_seconds:
                fault = self._try()
                if fault and not self._fault:
                    log.error("liveness lost", reason=fault)
                elif self._fault and not fault:
                    log.info("liveness regained")
                self._fault, self._tried = fault, time.monotonic()
            return self._fault

    def _try(self) -> str:
        """Return what is wrong, or nothing. Channels are new each time, without a back-off."""
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
