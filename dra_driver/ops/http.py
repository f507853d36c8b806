"""Serves metrics and a health check over HTTP.

In: a listening address such as `:8080` or `127.0.0.1:0`, and WSGI applications by path, such as
`Metrics.wsgi_app`. Out: GET and HEAD of these and of `/healthz`; anything else is refused.

The server is the standard library's wsgiref, not prometheus_client's `start_http_server`: that
answers every path with metrics, looks up this host's name before it listens, and lets any number of
slow or silent peers hold a thread forever. Here a peer has ten seconds in all, and if there are too
many, the one that came first is cut off: any pod of the cluster may connect, and idle ones must not
keep scrapers out.
"""

import io
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import structlog

from dra_driver.errors import SetupError
from dra_driver.host.worker import Worker

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

REQUEST_SECONDS = 10.0
"""How long a peer may take to send its request and to read its answer, together."""

MAX_PEERS = 16

_POLL_SECONDS = 0.2

_LEAVE_SECONDS = 0.5
"""How long a new peer waits for the thread of one that was cut off."""

_Answer = tuple[str, list[tuple[str, str]], bytes]
"""Status, headers and body."""

log = structlog.get_logger()


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """Split `host:port`; an empty host means every address, as in Go. Raises SetupError."""
    host, colon, port = endpoint.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise SetupError(
            f"HTTP endpoint {endpoint!r} is not of the form host:port: give for example :8080, "
            f"127.0.0.1:8080 or [::1]:0"
        )
    return host, int(port)


class HttpEndpoint(Worker):
    """Serves pages, and `/healthz`, until stopped."""

    def __init__(
        self,
        endpoint: str,
        pages: Mapping[str, "WSGIApplication"],
        *,
        request_seconds: float = REQUEST_SECONDS,
    ) -> None:
        super().__init__("http")
        self._request_seconds = request_seconds
        self._endpoint = endpoint
        self._site = _Site(pages)
        self._server: _Server | None = None

    @property
    def port(self) -> int:
        """The port that is listened on; chosen by the system when the endpoint said 0."""
        return int(self._server.server_address[1]) if self._server else 0

    def start(self) -> None:
        """Listen and serve in a thread. Raises SetupError if the address is not available."""
        host, port = parse_endpoint(self._endpoint)
        try:
            self._server = _Server(host, port, self._site, request_seconds=self._request_seconds)
        except OSError as error:
            raise SetupError(
                f"HTTP endpoint {self._endpoint} cannot be listened on: "
                f"{error.strerror or error}: choose another --http-endpoint"
            ) from error
        super().start()
        log.info("http endpoint opened", endpoint=self._endpoint, port=self.port)

    def stop(self, timeout: float = REQUEST_SECONDS) -> bool:
        """Stop listening; running answers keep their own time limit."""
        if self._server is not None:
            self._server.shutdown()
        ended = super().stop(timeout)
        if self._server is not None:
            self._server.server_close()
            self._server = None
        return ended

    def _run(self) -> None:
        if self._server is not None:
            self._server.serve_forever(_POLL_SECONDS)


class _Site:
    """The WSGI application that passes a request on to the page of its path."""

    def __init__(self, pages: Mapping[str, "WSGIApplication"]) -> None:
        self._pages = pages

    def __call__(
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        status, headers, body = self._answer(method, environ)
        headers = [*headers, ("Content-Length", str(len(body))), ("Server", "dra-driver")]
        start_response(status, headers)
        return [] if method == "HEAD" else [body]

    def _answer(self, method: str, environ: "WSGIEnvironment") -> _Answer:
        if method not in ("GET", "HEAD"):
            return _text("501 Not Implemented")
        path = environ["PATH_INFO"]
        if path == "/healthz":
            return _text("200 OK", "ok")
        page = self._pages.get(path)
        if page is None:
            return _text("404 Not Found")
        answers: list[tuple[str, list[tuple[str, str]]]] = []

        def start(status: str, headers: list[tuple[str, str]], *_: object) -> Any:
            answers.append((status, headers))

        try:
            body = b"".join(page({**environ, "REQUEST_METHOD": "GET"}, start))
        except Exception:
            # A page's fault must not look like success to a scraper, and must not end the thread.
            log.exception("http page not made", path=path)
            return _text("500 Internal Server Error")
        return (*answers[-1], body)


def _text(status: str, text: str = "") -> _Answer:
    body = f"{text or status[4:]}\n".encode()
    return status, [("Content-Type", "text/plain; charset=utf-8")], body


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64  # of five, a burst of idle peers fills the queue for a second

    def __init__(
        self, host: str, port: int, application: "WSGIApplication", *, request_seconds: float
    ) -> None:
        self._request_seconds = request_seconds
        self._free = threading.BoundedSemaphore(MAX_PEERS)
        self._peers: OrderedDict[socket.socket, float] = OrderedDict()  # and when each came
        self._peers_lock = threading.Lock()
        self.address_family = _family(host)
        super().__init__((host, port), _Handler)
        self.set_app(application)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            # "::" then takes IPv4 peers too, as Go's ":8080" does.
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # Not HTTPServer's own: it would ask the name service for this host's name.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.socket.getsockname()[:2]
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, object]:
        connection, address = super().get_request()
        connection.settimeout(self._request_seconds)
        return connection, address

    def process_request(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        if not self._free.acquire(blocking=False):
            with self._peers_lock:
                if self._peers:
                    _cut_off(self._peers.popitem(last=False)[0])
            if not self._free.acquire(timeout=_LEAVE_SECONDS):
                self.shutdown_request(request)
                return
        if isinstance(request, socket.socket):  # always, with TCP
            with self._peers_lock:
                self._peers[request] = time.monotonic()
        super().process_request(request, client_address)

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        if isinstance(request, socket.socket):
            with self._peers_lock:
                self._peers.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut off peers whose time is over, even if they send a byte now and then. Called often."""
        before = time.monotonic() - self._request_seconds
        with self._peers_lock:
            for peer, came in self._peers.items():
                if came <= before:
                    _cut_off(peer)

    def handle_error(self, request: object, client_address: object) -> None:
        del request
        log.debug("http request failed", peer=str(client_address))


def _cut_off(peer: socket.socket) -> None:
    """End a connection; its thread then reads the end, or cannot write."""
    with suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)


def _family(host: str) -> socket.AddressFamily:
    if host == "" and socket.has_dualstack_ipv6():
        return socket.AF_INET6
    return socket.AF_INET6 if ":" in host else socket.AF_INET


class _Handler(WSGIRequestHandler):
    def get_stderr(self) -> io.StringIO:
        """Drop the traceback that wsgiref writes when a peer goes away; the log has one line."""
        return io.StringIO()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        log.debug("http request answered", line=format % args)
