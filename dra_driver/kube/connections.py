"""HTTP/1.1 with the API server, over connections that are kept alive.

In: how to connect, and requests. Out: their answers. Answers are read by llhttp, the parser of
Node.js (httptools). http.client, on which urllib3 is built, too, reads headers like those of a
mail: with these two a GET of a claim takes 0.6 ms of CPU time, here 0.15 ms. The ssl module
connects in a pod, and urllib3 with a kubeconfig, because it supports all options of one.
"""

import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from time import monotonic

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

_CONNECT_SECONDS = 5.0
_MOST_IDLE = 32
"""Kept-alive connections: every worker of the kubelet's service, the watch, and a few more."""

_CHUNK = 65536
_LONGEST_HEAD = 4 * _CHUNK
"""Bytes before the body: a server that sends more is not an API server."""
_LARGEST_BODY = 256 * 1024 * 1024
"""Bytes of a body that is kept whole. A page of a list has at most 500 objects, and etcd stores at
most 1.5 MiB of one; in practice such a page has a few MiB."""

Connect = Callable[[float], socket.socket]
"""Makes a connection, including TLS; each step has so many seconds. Raises OSError."""


class NotReachableError(OSError):
    """No connection can be made."""


class BrokenError(OSError):
    """A connection ended before an answer did, or the answer is not HTTP."""


class Response:
    """An answer: `status`, `headers` by their names in lower case, and the body.

    The body is `data`, or arrives as `chunks` if it was requested as a stream.
    """

    def __init__(self, connection: socket.socket, deadline: float | None = None) -> None:
        """Read up to the body; `deadline`, by the monotonic clock, is for the whole answer."""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.data = b""
        self.keeps_alive = False
        self._connection = connection
        self._deadline = deadline
        self._parts: list[bytes] = []
        self._has_head = self._is_whole = self._is_interim = False
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        read = 0
        while not self._has_head:
            read += self._receive(self._parser)
            if read > _LONGEST_HEAD and not self._has_head:
                raise BrokenError("its answer has too many headers")

    def stream(self, timeout: float) -> None:
        """Let the body take any time; each wait for bytes may take `timeout` seconds."""
        self._deadline = None
        self._connection.settimeout(timeout)

    def chunks(self) -> Iterator[bytes]:
        """Yield the parts of the body as they arrive."""
        while True:
            parts, self._parts = self._parts, []
            yield from parts
            if self._is_whole or self._parser is None:
                break
            self._receive(self._parser)
        self._parser = None  # it refers to this object: leave nothing to the collector

    def read(self) -> None:
        """Read all of the body into `data`."""
        parts, size = [], 0
        for part in self.chunks():
            parts.append(part)
            size += len(part)
            if size > _LARGEST_BODY:
                raise BrokenError(f"its answer has more than {_LARGEST_BODY >> 20} MiB")
        self.data = b"".join(parts)

    def shutdown(self) -> None:
        """End a read in another thread now."""
        if isinstance(self._connection, socket.socket):  # which TLS within a proxy's TLS is not
            # Not SSLSocket's own, which takes the state of TLS away from under the reader.
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._parser = None
        self._connection.close()

    def _receive(self, parser: HttpResponseParser) -> int:
        if self._deadline is not None:
            left = self._deadline - monotonic()
            if left <= 0:
                raise TimeoutError
            self._connection.settimeout(left)
        try:
            received = self._connection.recv(_CHUNK)
            if received:
                parser.feed_data(received)
            elif self._ends_with_connection():
                self._is_whole = True
            else:
                raise BrokenError("it closed the connection before its answer was complete")
        except (ConnectionError, ssl.SSLEOFError, HttpParserError, HttpParserUpgrade) as error:
            raise BrokenError(str(error.__context__ or error)) from error
        return len(received)

    def _ends_with_connection(self) -> bool:
        """Tell whether the body ends only with the connection, as with very old proxies."""
        return self._has_head and not {"content-length", "transfer-encoding"} & self.headers.keys()

    # What the parser calls while it is fed.

    def on_message_begin(self) -> None:
        """Begin an answer to the request."""
        if self._is_whole:
            raise BrokenError("it sent more than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; those after a body are ignored."""
        if not self._has_head:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Note what only the parser knows, and forgets when the body is complete.

        Answers of status 1xx precede the real answer, and are ignored (RFC 9110, section 15.2).
        """
        status = 0 if self._parser is None else self._parser.get_status_code()
        if HTTPStatus.CONTINUE <= status < HTTPStatus.OK:
            self._is_interim = True
            self.headers.clear()
            return
        self._has_head = True
        if self._parser is not None:
            self.status = status
            self.keeps_alive = self._parser.should_keep_alive()

    def on_body(self, part: bytes) -> None:
        """Take a part of the body."""
        self._parts.append(part)

    def on_message_complete(self) -> None:
        """Note the end."""
        self._is_whole, self._is_interim = not self._is_interim, False


class Connections:
    """Sends requests to one server; safe to use from many threads."""

    def __init__(self, connect: Connect, host: str, port: int) -> None:
        self.host = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._connect = connect
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        self._is_closed = False

    def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        timeout: float,
        stream: bool = False,
    ) -> Response:
        """Send a request and return its answer; for a stream only up to its body.

        `timeout` is in seconds: for connecting, and then for the whole answer; for a stream, for
        its head and for each wait for bytes after it. An answer other than 200 is not a stream.
        Raises NotReachableError, BrokenError, TimeoutError, ssl.SSLError, or another OSError.
        """
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        request = "\r\n".join([*lines, "\r\n"]).encode("latin-1") + body
        connection = self._taken() or self._connected(timeout)
        try:
            connection.settimeout(timeout)
            # A server may refuse a request, and say why, before it has read all of it.
            with suppress(ConnectionError, ssl.SSLEOFError):
                connection.sendall(request)
            response = Response(connection, monotonic() + timeout)
            if stream and response.status == HTTPStatus.OK:
                response.stream(timeout)
                return response
            response.read()
        except BaseException as error:
            connection.close()
            if isinstance(error, TimeoutError):
                raise TimeoutError(f"no whole answer within {timeout:.3g} s") from error
            raise
        self._give_back(connection, alive=response.keeps_alive)
        return response

    def close(self) -> None:
        """Close the idle connections; the others are closed after their answers."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _taken(self) -> socket.socket | None:
        """Return the connection that was used last, of those that are still open."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            # Without a request, what arrives is the connection's end, or nothing to be believed.
            ready = select.poll()
            ready.register(connection, select.POLLIN)
            if not ready.poll(0):
                return connection
            connection.close()

    def _give_back(self, connection: socket.socket, *, alive: bool) -> None:
        with self._lock:
            if alive and not self._is_closed and len(self._idle) < _MOST_IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def _connected(self, timeout: float) -> socket.socket:
        longest = min(_CONNECT_SECONDS, timeout)
        try:
            return self._connect(longest)
        except TimeoutError as error:
            raise TimeoutError(f"{self.host}: no connection within {longest:.3g} s") from error
        except ssl.SSLError:
            raise
        except OSError as error:
            raise NotReachableError(f"{self.host}: {error}") from error


def over_tls(host: str, port: int, authority: Path) -> Connect:
    """Return how to connect to a server whose certificate `authority` has signed."""

    def connect(timeout: float) -> socket.socket:
        # Each time again: the kubelet replaces the file when the cluster's authority changes.
        try:
            context = ssl.create_default_context(cafile=authority)
        except OSError as error:
            raise ssl.SSLError(f"{authority}: {error}") from error
        connection = socket.create_connection((host, port), timeout)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return context.wrap_socket(connection, server_hostname=host)
        except BaseException:
            connection.close()
            raise

    return connect
