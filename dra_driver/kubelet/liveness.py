"""The ways to ask for the driver's health: a socket in its pod, and a TCP port if one is wanted.

In: questions of the pod's own probes on a unix socket (`dra_driver/kubelet/probe.py`), and, where a
port is set, gRPC health checks from the network (grpc.health.v1 Check, as NVIDIA's driver answers
them). Out: what `Health` says. On the socket a question is the name of a service, and the answer
`ok` or what is wrong. Nobody but root in the pod gets there, so that no other pod decides whether
the kubelet restarts this one. The port is open to the network: its connections, calls and memory
are bounded, and a peer that uses them up keeps others out there and nowhere else.
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

from dra_driver.errors import SetupError
from dra_driver.kubelet.health import CALL_SECONDS, READINESS, SERVICES, Health
from dra_driver.kubelet.probe import WELL

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
"""What the network may use of a health port; streams are those of one connection."""

_ASK_SECONDS = 2.0
_PAUSE_SECONDS = 0.05
_REGISTER_SECONDS = 3.0
_REGISTER_LOOK_SECONDS = 0.1

log = structlog.get_logger()


class HealthSocket:
    """Answers the pod's own probes on a unix socket until stopped.

    A question whether the driver is ready waits a moment for the kubelet, which looks for new
    drivers once a second: so a pod need not wait for the next probe.
    """

    def __init__(
        self, health: Health, path: Path, *, register_seconds: float = _REGISTER_SECONDS
    ) -> None:
        """Take whom to ask, and where to listen."""
        self._health = health
        self._path = path
        self._register_seconds = register_seconds
        self._stopping = threading.Event()
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen, in the place of a socket that an earlier life left behind.

        Raises:
            SetupError: the socket cannot be made.
        """
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
        self._thread = threading.Thread(
            target=self._serve, args=(listener,), name="health-socket", daemon=True
        )
        self._thread.start()
        log.info("health socket opened", path=str(self._path))

    def stop(self) -> None:
        """Stop listening. Stopping twice is fine."""
        listener, self._listener = self._listener, None
        if listener is None or self._thread is None:
            return
        self._stopping.set()
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join(_ASK_SECONDS)
        listener.close()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _serve(self, listener: socket.socket) -> None:
        while not self._stopping.is_set():
            try:
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(_ASK_SECONDS)
                    service = connection.recv(64).decode(errors="replace")
                    connection.sendall(self._answer(service))
            except OSError as error:  # a probe that was killed, no more files, or the end
                log.debug("health socket has not answered", reason=str(error))
                self._stopping.wait(_PAUSE_SECONDS)

    def _answer(self, service: str) -> bytes:
        if service not in SERVICES:
            return f"unknown service {service!r}\n".encode()
        fault = self._health.fault(service)
        end = time.monotonic() + self._register_seconds
        while fault and service == READINESS and time.monotonic() < end:
            if self._stopping.wait(_REGISTER_LOOK_SECONDS):
                break
            fault = self._health.fault(service)
        return f"{fault}\n".encode() if fault else WELL


class HealthPort(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Answers gRPC health checks on a TCP address until stopped."""

    def __init__(self, health: Health, *, address: str, port: int) -> None:
        """Take whom to ask, and where to listen.

        Args:
            health: says how the driver is.
            address: an IP address; empty for all, of both families.
            port: 0 lets the system choose one.
        """
        self._health = health
        address = address or "::"
        self._host = f"[{address}]" if ":" in address else address
        self._wanted_port = port
        self._server: grpc.Server | None = None
        self.port = 0

    def start(self) -> None:
        """Listen; `port` then holds the port.

        Raises:
            SetupError: the address cannot be had.
        """
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
        """Say whether all is well."""
        if request.service not in SERVICES:
            context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"unknown service {request.service!r}: ask for 'liveness', 'readiness' or ''",
            )
        status = health_pb2.HealthCheckResponse
        fault = self._health.fault(request.service)
        return status(status=status.NOT_SERVING if fault else status.SERVING)


class Probes:
    """Both ways, as far as they are wanted: the socket has a path, the port is not negative."""

    def __init__(self, health: Health, *, path: Path | None, address: str, port: int) -> None:
        """Take whom to ask, and where to listen."""
        socket_ = () if path is None else (HealthSocket(health, path),)
        port_ = () if port < 0 else (HealthPort(health, address=address, port=port),)
        self._ways: tuple[HealthSocket | HealthPort, ...] = (*socket_, *port_)

    def start(self) -> None:
        """Listen.

        Raises:
            SetupError: the socket cannot be made, or the address cannot be had.
        """
        for way in self._ways:
            way.start()

    def stop(self) -> None:
        """Stop listening. Stopping twice is fine."""
        for way in self._ways:
            way.stop()
