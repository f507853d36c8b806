"""Whether the driver answers, as seen from outside, and whether the kubelet has registered it.

In: questions for "liveness" (or "") or "readiness", of the pod's own probes on a unix socket
(`dra_driver/kubelet/probe.py`), and, if a port is set, gRPC health checks from the network
(grpc.health.v1 Check, as in NVIDIA's DRA driver). Out: what `Health` says. On the socket a question
is the name of a service, and the answer is `ok` or what is wrong.

Only root in the pod can reach the socket, so no other pod decides whether the kubelet restarts this
one. The port is open to the network: its connections, calls and memory are limited, and a peer that
uses them up keeps only other peers of the port out.

A driver is alive if its own sockets answer within a few seconds. A kubelet takes the same way, so a
removed socket or a stuck process is noticed. Waiting claims are no reason for a restart: the
service socket answers on threads that no claim uses. Nor is a disk on which the sockets cannot be
created yet. A driver is ready if the kubelet has registered it, too: a rolling update that waits
for this does not stop an old driver before the kubelet calls the new one. A check changes nothing.
A probe that asks again within a second gets the same answer, so questions cost next to nothing.
"""

import socket
import threading
import time
from concurrent import futures
from contextlib import suppress
from pathlib import Path

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dra_driver.devices.names import DRIVER_NAME
from dra_driver.errors import SetupError
from dra_driver.host.worker import Worker
from dra_driver.kubelet.plugin import KubeletPlugin
from dra_driver.kubelet.probe import WELL
from dra_driver.kubelet.protos import (
    pluginregistration_v1_pb2,
    pluginregistration_v1_pb2_grpc,
)
from dra_driver.kubelet.sockets import SocketPaths

READINESS = "readiness"
SERVICES = ("", "liveness", READINESS)

CALL_SECONDS = 4.0
"""For each of the two calls; ten seconds in all are enough for a probe."""

_FRESH_SECONDS = 1.0

_WORKERS = 4
_MOST_CALLS = 64
_MOST_CONNECTIONS = 256

_BOUNDS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_allowed_incoming_connections", _MOST_CONNECTIONS),
    ("grpc.max_concurrent_streams", 4),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", 10_000),
    ("grpc.max_connection_age_ms", 60_000),
    ("grpc.max_connection_age_grace_ms", 10_000),
    ("grpc.max_receive_message_length", 1024),
)
"""Limits of a health port; streams are those of one connection."""

_ASK_SECONDS = 2.0
_PAUSE_SECONDS = 0.05
_REGISTER_SECONDS = 3.0
_REGISTER_LOOK_SECONDS = 0.1

log = structlog.get_logger()


class Health:
    """The answers to probes, by socket and port."""

    def __init__(
        self, paths: SocketPaths, plugin: KubeletPlugin, *, fresh_seconds: float = _FRESH_SECONDS
    ) -> None:
        """Take the sockets to try, their owner, and for how long an answer stays valid."""
        self._paths = paths
        self._plugin = plugin
        self._fresh_seconds = fresh_seconds
        self._lock = threading.Lock()
        self._fault = ""
        self._tried: float | None = None

    def fault(self, service: str) -> str:
        """Return why the driver is not alive, or not ready; empty if it is.

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
        """Return what is wrong, or nothing. Each call makes new channels, without a back-off."""
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


class HealthSocket(Worker):
    """Answers the pod's own probes on a unix socket until stopped.

    The answer about readiness waits a moment for the kubelet, which looks for new drivers once a
    second, so a pod need not wait for the next probe.
    """

    def __init__(
        self, health: Health, path: Path, *, register_seconds: float = _REGISTER_SECONDS
    ) -> None:
        super().__init__("health-socket")
        self._health = health
        self._path = path
        self._register_seconds = register_seconds
        self._listener: socket.socket | None = None

    def start(self) -> None:
        """Listen, and replace a socket that an earlier process left. Raises SetupError."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._path.unlink(missing_ok=True)
            listener.bind(str(self._path))
            self._path.chmod(0o600)
            listener.listen()
        except OSError as error:
            listener.close()
            raise SetupError(
                f"health socket {self._path} cannot be made: {error.strerror or error}; give "
                "--health-socket a short path in a folder of the pod's own that can be written"
            ) from error
        self._listener = listener
        super().start()
        log.info("health socket opened", path=str(self._path))

    def stop(self, timeout: float = _ASK_SECONDS) -> bool:
        """Stop listening. Stopping twice is fine."""
        self._stop.set()
        listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        ended = super().stop(timeout)
        if listener is not None:
            listener.close()
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
        return ended

    def _run(self) -> None:
        listener = self._listener
        while listener is not None and not self._stop.is_set():
            try:
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(_ASK_SECONDS)
                    service = connection.recv(64).decode(errors="replace")
                    connection.sendall(self._answer(service))
            except OSError as error:  # a probe that was killed, no more files, or the end
                log.debug("health socket has not answered", reason=str(error))
                self._stop.wait(_PAUSE_SECONDS)

    def _answer(self, service: str) -> bytes:
        if service not in SERVICES:
            return f"unknown service {service!r}\n".encode()
        fault = self._health.fault(service)
        end = time.monotonic() + self._register_seconds
        while fault and service == READINESS and time.monotonic() < end:
            if self._stop.wait(_REGISTER_LOOK_SECONDS):
                break
            fault = self._health.fault(service)
        return f"{fault}\n".encode() if fault else WELL


class HealthPort(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Answers gRPC health checks on a TCP address until stopped."""

    def __init__(self, health: Health, *, address: str, port: int) -> None:
        """Take what to ask, and where to listen: an IP address, or empty for all."""
        self._health = health
        address = address or "::"
        self._host = f"[{address}]" if ":" in address else address
        self._wanted_port = port
        self._server: grpc.Server | None = None
        self.port = 0

    def start(self) -> None:
        """Listen; `port` then has the port. Raises SetupError if the address is not available."""
        pool = futures.ThreadPoolExecutor(_WORKERS, thread_name_prefix="health-port")
        server = grpc.server(pool, options=_BOUNDS, maximum_concurrent_rpcs=_MOST_CALLS)
        health_pb2_grpc.add_HealthServicer_to_server(self, server)
        try:
            self.port = server.add_insecure_port(f"{self._host}:{self._wanted_port}")
        except RuntimeError as error:
            raise SetupError(
                f"cannot listen on {self._host}:{self._wanted_port} for health checks ({error}); "
                "choose another --healthcheck-port or --healthcheck-address"
            ) from error
        server.start()
        self._server = server
        log.info("health port opened", address=self._host, port=self.port)

    def stop(self) -> None:
        """Stop listening. Stopping twice is fine."""
        server, self._server = self._server, None
        if server is not None:
            server.stop(None).wait(timeout=CALL_SECONDS)

    def Check(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """Answer a check."""
        if request.service not in SERVICES:
            context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"unknown service {request.service!r}: ask for 'liveness', 'readiness' or ''",
            )
        status = health_pb2.HealthCheckResponse
        fault = self._health.fault(request.service)
        return status(status=status.NOT_SERVING if fault else status.SERVING)


def _words(error: grpc.RpcError) -> str:
    # What a channel raises is a grpc.Call too, though the types do not say so.
    code, details = (getattr(error, name, lambda: "") for name in ("code", "details"))
    return f"{code()}: {details()}"
