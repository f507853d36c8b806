"""Connections against servers that answer byte by byte what a test says."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from dra_driver.errors import UnavailableError
from dra_driver.kube import connections as http
from dra_driver.kube import responses
from dra_driver.kube.connections import BrokenError, Connections, NotReachableError, Response
from dra_driver.kube.resource import RESOURCE_CLAIMS, Call

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass
class Server:
    """Answers the first request of each connection with the first of `answers`, and so on.

    After the answers of a connection it hangs up; an answer None is silence until then.
    """

    answers: list[list[bytes | None]] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)
    connected: int = 0

    def __post_init__(self) -> None:
        self.ended = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        with self.listener, suppress(OSError):
            while not self.ended.is_set():
                connection, _ = self.listener.accept()
                with connection, suppress(OSError):
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self.connected += 1
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        for answer in self.answers.pop(0) if self.answers else []:
            received = b""
            while b"\r\n\r\n" not in received:
                if not (more := connection.recv(65536)):
                    return
                received += more
            self.requests.append(received)
            if answer is None:
                self.ended.wait(10)
            else:
                connection.sendall(answer)

    def stop(self) -> None:
        self.ended.set()
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


@pytest.fixture
def connections(server: Server) -> Iterator[Connections]:
    def connect(timeout: float) -> socket.socket:
        return socket.create_connection(("127.0.0.1", server.port), timeout)

    made = Connections(connect, "127.0.0.1", server.port)
    yield made
    made.close()


@pytest.fixture
def get(connections: Connections) -> Callable[[], Response]:
    return lambda: connections.request("GET", "/version", headers={"Accept": "x"}, timeout=5)


def test_a_request_says_all_that_http_asks_for(server: Server, connections: Connections) -> None:
    server.answers = [[OK, OK]]
    connections.request("GET", "/a?b=c", headers={"Accept": "x"}, timeout=5)
    connections.request("PUT", "/a", headers={}, body=b"body", timeout=5)
    host = b"Host: 127.0.0.1:%d" % server.port
    assert server.requests == [
        b"GET /a?b=c HTTP/1.1\r\n" + host + b"\r\nAccept: x\r\n\r\n",
        b"PUT /a HTTP/1.1\r\n" + host + b"\r\nContent-Length: 4\r\n\r\nbody",
    ]
    assert server.connected == 1


def test_an_address_of_ipv6_is_written_as_urls_have_it() -> None:
    assert Connections(lambda _: socket.socket(), "fd00::1", 443).host == "[fd00::1]:443"


@pytest.mark.parametrize(
    ("answer", "data"),
    [
        (OK, b"ok"),
        (CHUNKED + b"1\r\no\r\n1;x=y\r\nk\r\n0\r\nDate: in a trailer\r\n\r\n", b"ok"),
        (b"HTTP/1.1 200 OK\r\nX-Empty:\r\nContent-Length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_an_answer_may_come_in_parts_of_any_size(answer: bytes, data: bytes, size: int) -> None:
    ours, theirs = socket.socketpair()

    def send() -> None:
        for start in range(0, len(answer), size):
            theirs.sendall(answer[start : start + size])

    with ours, theirs:
        sender = threading.Thread(target=send)
        sender.start()
        response = Response(ours)
        response.read()
        sender.join()
    assert (response.data, response.keeps_alive) == (data, True)
    assert "date" not in response.headers


@pytest.mark.parametrize(
    "last",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\n\r\nok",
    ],
)
def test_a_connection_is_not_reused_after_its_last_answer(
    server: Server, get: Callable[[], Response], last: bytes
) -> None:
    server.answers = [[last], [OK]]
    assert [get().data, get().data] == [b"ok", b"ok"]
    assert server.connected == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok",
        CHUNKED + b"2\r\nok\r\n",
        CHUNKED + b"x\r\nok\r\n0\r\n\r\n",
        b"<html>\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        OK + OK,
        OK + b"more",
    ],
)
def test_an_invalid_answer_closes_its_connection(
    server: Server, get: Callable[[], Response], answer: bytes
) -> None:
    server.answers = [[answer], [OK]]
    with pytest.raises(BrokenError):
        get()
    assert get().data == b"ok"
    assert server.connected == 2


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 200 OK\r\n" + b"X-More: and more\r\n" * 100_000, "too many headers"),
        (INTERIM * 20_000, "too many headers"),
        (OK + OK, "more than one answer"),
    ],
    ids=["headers", "answers of status 1xx", "two answers"],
)
def test_what_has_no_end_and_more_than_one_answer_are_broken(
    server: Server, get: Callable[[], Response], answer: bytes, why: str
) -> None:
    server.answers = [[answer]]
    with pytest.raises(BrokenError, match=why):
        get()


def test_unexpected_bytes_do_not_answer_the_next_request(
    server: Server, connections: Connections, get: Callable[[], Response]
) -> None:
    ours, theirs = socket.socketpair()
    server.answers = [[OK]]
    with theirs:
        connections._give_back(ours, alive=True)
        theirs.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        assert get().data == b"ok"
    assert ours.fileno() == -1


def test_silence_is_a_timeout_that_says_how_long(server: Server, connections: Connections) -> None:
    server.answers = [[None], [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no", None]]
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"no whole answer within 0.05 s"):
            connections.request("GET", "/", headers={}, timeout=0.05)
        server.ended.set()
        server.ended = threading.Event()


HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"


@pytest.mark.parametrize("before", [INTERIM, HINTS, INTERIM + HINTS + HINTS])
def test_informational_answers_precede_the_answer(
    server: Server, get: Callable[[], Response], before: bytes
) -> None:
    server.answers = [[before + OK, before + OK]]
    for _ in range(2):
        response = get()
        assert (response.status, response.data) == (200, b"ok")
        assert "link" not in response.headers
    assert server.connected == 1


@dataclass
class Dripping:
    """A connection on which a byte comes at each `recv`, and a second passes."""

    data: bytes
    now: float = 0.0
    timeouts: list[float] = field(default_factory=list)

    def settimeout(self, seconds: float) -> None:
        self.timeouts.append(seconds)

    def recv(self, _: int) -> bytes:
        self.now += 1
        found, self.data = self.data[:1], self.data[1:]
        return found


def test_the_timeout_is_for_the_whole_answer_however_slowly_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    drip = Dripping(head + b"x" * 1000)
    monkeypatch.setattr(http, "monotonic", lambda: drip.now)
    response = Response(drip, deadline=100.0)  # type: ignore[arg-type]
    with pytest.raises(TimeoutError):
        response.read()
    assert drip.now == 100
    assert drip.timeouts == [100.0 - second for second in range(100)]


def test_a_stream_has_no_time_limit_after_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    drip = Dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b"x" * 1000)
    monkeypatch.setattr(http, "monotonic", lambda: drip.now)
    response = Response(drip, deadline=100.0)  # type: ignore[arg-type]
    response.stream(7.0)
    assert b"".join(response.chunks()) == b"x" * 1000
    assert drip.timeouts[-1] == 7.0


def test_a_body_that_is_larger_than_any_answer_is_not_kept(
    server: Server, get: Callable[[], Response], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_LARGEST_BODY", 1024 * 1024)
    server.answers = [[CHUNKED + b"100000\r\n" + b"x" * 0x100000 + b"\r\n1\r\nx\r\n0\r\n\r\n"]]
    with pytest.raises(BrokenError, match="its answer has more than 1 MiB"):
        get()


def test_an_event_that_is_larger_than_any_object_ends_its_stream(
    server: Server, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "_LONGEST_EVENT", 1024 * 1024)
    event = b'{"type": "ADDED", "object": {}}\n'
    body = event + b"x" * 0x200000
    server.answers = [[CHUNKED + b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"]]
    response = connections.request("GET", "/", headers={}, timeout=5, stream=True)
    events = iter(responses.WatchStream(Call(verb="watch", resource=RESOURCE_CLAIMS), response))
    assert next(events)["type"] == "ADDED"
    with pytest.raises(UnavailableError, match="an event has more than 1 MiB"):
        next(events)


def test_a_closed_port_is_not_reachable(server: Server, connections: Connections) -> None:
    server.stop()
    with pytest.raises(NotReachableError, match=rf"127.0.0.1:{server.port}: .*refused"):
        connections.request("GET", "/", headers={}, timeout=5)


@pytest.mark.parametrize(("timeout", "longest"), [(30, 5), (2, 2)])
def test_a_slow_connection_is_reported(timeout: float, longest: float) -> None:
    def connect(timeout: float) -> socket.socket:
        raise TimeoutError(f"{timeout:g} s are over")

    with pytest.raises(TimeoutError, match=f"no connection within {longest} s") as caught:
        Connections(connect, "api", 443).request("GET", "/", headers={}, timeout=timeout)
    assert str(caught.value.__cause__) == f"{longest} s are over"


class Noting(socket.socket):
    """A connection that notes the time that it has for sending a request."""

    given: ClassVar[list[float | None]] = []

    def sendall(self, *args: Any) -> None:
        self.given.append(self.gettimeout())
        super().sendall(*args)


def test_a_request_on_a_kept_connection_has_the_time_that_it_was_given(server: Server) -> None:
    def connect(timeout: float) -> socket.socket:
        made = Noting()
        made.settimeout(timeout)
        made.connect(("127.0.0.1", server.port))
        return made

    Noting.given = []
    connections = Connections(connect, "127.0.0.1", server.port)
    server.answers = [[OK, OK, OK]]
    for timeout in (60, 50, 70):
        connections.request("GET", "/", headers={}, timeout=timeout)
    connections.close()
    assert (Noting.given, server.connected) == ([60, 50, 70], 1)


def test_a_tls_error_does_not_count_as_unreachable() -> None:
    def connect(timeout: float) -> socket.socket:
        raise ssl.SSLCertVerificationError("unknown authority")

    with pytest.raises(ssl.SSLError, match="unknown authority"):
        Connections(connect, "api", 443).request("GET", "/", headers={}, timeout=30)


def test_a_refusal_during_the_request_is_read(server: Server, connections: Connections) -> None:
    refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig"
    server.answers = [[refusal]]
    body = b"x" * 30_000_000
    response = connections.request("PUT", "/", headers={}, body=body, timeout=5)
    assert (response.status, response.data) == (413, b"big")


def test_a_stream_that_is_refused_is_read_and_its_connection_kept(
    server: Server, connections: Connections, get: Callable[[], Response]
) -> None:
    server.answers = [[b"HTTP/1.1 410 Gone\r\nContent-Length: 4\r\n\r\ngone", OK]]
    refused = connections.request("GET", "/", headers={}, timeout=5, stream=True)
    assert (refused.status, refused.data) == (410, b"gone")
    get()
    assert server.connected == 1


def test_a_stream_ends_when_another_thread_shuts_it_down(
    server: Server, connections: Connections
) -> None:
    server.answers = [[CHUNKED + b"2\r\nok\r\n", None]]
    stream = connections.request("GET", "/", headers={}, timeout=60, stream=True)
    chunks = stream.chunks()
    assert next(chunks) == b"ok"
    threading.Timer(0.05, stream.shutdown).start()
    with pytest.raises(BrokenError):
        next(chunks)
    stream.close()


def test_after_close_no_connection_is_left(
    server: Server, connections: Connections, get: Callable[[], Response]
) -> None:
    server.answers = [[OK], [OK]]
    get()
    (idle,) = connections._idle
    connections.close()
    assert idle.fileno() == -1
    get()
    assert connections._idle == []
