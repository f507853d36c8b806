"""A small HTTP server for metrics and a health check.

In: a listening address such as `:8080` or `127.0.0.1:0`, and functions that make the pages. Out:
GET and HEAD of `/metrics` (or another path) and `/healthz`; everything else is 404 or 405. A peer
that is slow or silent holds one thread for ten seconds at most, and no more than a few peers are
served at once, so that a scraper gone wild costs the driver little.
"""

import socket
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import structlog

from dra_driver.errors import SetupError

REQUEST_SECONDS = 10.0
"""How long a peer may take to send its request or to read its answer."""

MAX_PEERS = 16

Page = Callable[[], tuple[bytes, str]]
"""Makes a body and its content type."""

log = structlog.get_logger()


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """Split `host:port`. An empty host means every address of the machine, as in Go.

    Raises:
        SetupError: the text is not of that form.
    """
    host, colon, port = endpoint.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise SetupError(
            f"HTTP endpoint {endpoint!r} is not of the form host:port: give for example :8080, "
            f"127.0.0.1:8080 or [::1]:0"
        )
    return host, int(port)


class HttpEndpoint:
    """Serves pages until stopped."""

    def __init__(self, endpoint: str, pages: Mapping[str, Page]) -> None:
        """Take the address and the pages by path; nothing happens before `start`."""
        self._endpoint = endpoint
        self._pages = dict(pages)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port that is listened on; chosen by the system when the endpoint said 0."""
        return int(self._server.server_address[1]) if self._server else 0

    def start(self) -> None:
        """Listen and serve in a thread.

        Raises:
            SetupError: the address cannot be had.
        """
        host, port = parse_endpoint(self._endpoint)
        try:
            self._server = _Server(host, port, self._pages)
        except OSError as error:
            raise SetupError(
                f"HTTP endpoint {self._endpoint} cannot be listened on: "
                f"{error.strerror or error}: choose another --http-endpoint"
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.2,), name="http", daemon=True
        )
        self._thread.start()
        log.info("http endpoint opened", endpoint=self._endpoint, port=self.port)

    def stop(self) -> None:
        """Stop listening; answers under way are cut after their own time."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join(timeout=REQUEST_SECONDS)
            self._server.server_close()
            self._server = None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, pages: Mapping[str, Page]) -> None:
        self.pages = pages
        self._free = threading.BoundedSemaphore(MAX_PEERS)
        self.address_family = _family(host)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            # "::" then takes IPv4 peers too, as Go's ":8080" does.
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # Not HTTPServer's own: it would ask the name service for this host's name.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        del request
        log.debug("http request failed", peer=str(client_address))


def _family(host: str) -> socket.AddressFamily:
    if host == "" and socket.has_dualstack_ipv6():
        return socket.AF_INET6
    return socket.AF_INET6 if ":" in host else socket.AF_INET


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_SECONDS
    server: _Server

    def do_GET(self) -> None:
        page = self.server.pages.get(self.path.partition("?")[0])
        if page is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        try:
            body, kind = page()
        except Exception:
            # A page's fault must not look like success to a scraper, and must not end the thread.
            log.exception("http page not made", path=self.path)
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def version_string(self) -> str:
        return "dra-driver"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        log.debug("http request answered", line=format % args)
