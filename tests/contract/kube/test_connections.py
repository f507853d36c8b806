"""Connections against servers that answer byte by byte what a test says."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dra_driver.errors import UnavailableError
from dra_driver.kube import connections as http
from dra_driver.kube import stream
from dra_driver.kube.connections import (
    BrokenError,
    Connections,
    NotReachableError,
    Parts,
    Response,
    Server,
    TlsError,
)
from dra_driver.kube.resource import RESOURCE_CLAIMS, Call

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
HEADERS = {"User-Agent": "y", "Accept": "x"}
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass
class Answers:
    """Answers the first request of each connection with the first of `answers`, and so on.

    After the answers of a connection it hangs up; an answer None is silence until then. An answer
    is sent in parts of `size` bytes, with a pause of so many seconds after each. A
    request ends with `end`.
    """

    answers: list[list[bytes | None]] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)
    connected: int = 0
    size: int = 1 << 30
    pause: float = 0
    end: bytes = b"\r\n\r\n"

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
            received = connection.recv(65536)
            while self.end not in received:
                if not (more := connection.recv(65536)):
                    return
                received += more
            self.requests.append(received)
            if answer is None:
                self.ended.wait(10)
                continue
            for start in range(0, len(answer), self.size):
                connection.sendall(answer[start : start + self.size])
                if self.pause and self.ended.wait(self.pause):
                    return

    def stop(self) -> None:
        self.ended.set()
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join()


@pytest.fixture
def server() -> Iterator[Answers]:
    made = Answers()
    yield made
    made.stop()


@pytest.fixture
def connections(server: Answers) -> Iterator[Connections]:
    made = Connections(Server(host="127.0.0.1", port=server.port, scheme="http"))
    yield made
    made.close()


@pytest.fixture
def get(connections: Connections) -> Callable[[], Response]:
    return lambda: connections.request("GET", "/version", headers={"Accept": "x"}, timeout=5)


def test_a_request_says_all_that_http_asks_for(server: Answers, connections: Connections) -> None:
    server.answers = [[OK, OK]]
    connections.request("GET", "/a?b=c", headers=HEADERS, timeout=5)
    connections.request("PUT", "/a", headers=HEADERS, body=b"body", timeout=5)
    host = b"Host: 127.0.0.1:%d" % server.port
    assert server.requests == [
        b"GET /a?b=c HTTP/1.1\r\n" + host + b"\r\nUser-Agent: y\r\nAccept: x\r\n\r\n",
        b"PUT /a HTTP/1.1\r\n"
        + host
        + b"\r\nUser-Agent: y\r\nAccept: x\r\nContent-Length: 4\r\n\r\nbody",
    ]
    assert server.connected == 1


def test_an_address_of_ipv6_is_written_as_urls_have_it() -> None:
    assert Connections(Server(host="fd00::1", port=443)).host == "[fd00::1]:443"


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
def test_an_answer_may_come_in_parts_of_any_size(
    server: Answers, get: Callable[[], Response], answer: bytes, data: bytes, size: int
) -> None:
    server.answers = [[answer, OK]]
    server.size = size
    assert [get().data, get().data] == [data, b"ok"]
    assert server.connected == 1


@pytest.mark.parametrize(
    "last",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\n\r\nok",
    ],
)
def test_a_connection_whose_last_answer_it_was_is_not_used_again(
    server: Answers, get: Callable[[], Response], last: bytes
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
    ],
)
def test_what_is_no_answer_is_broken_and_its_connection_is_closed(
    server: Answers, get: Callable[[], Response], answer: bytes
) -> None:
    server.answers = [[answer], [OK]]
    with pytest.raises(BrokenError):
        get()
    assert get().data == b"ok"
    assert server.connected == 2


def test_headers_without_end_are_broken(server: Answers, get: Callable[[], Response]) -> None:
    server.answers = [[b"HTTP/1.1 200 OK\r\n" + b"X-More: and more\r\n" * 100_000]]
    with pytest.raises(BrokenError, match="Too many response headers"):
        get()


@pytest.mark.parametrize("more", [OK, b"more"])
def test_what_follows_an_answer_is_no_answer_to_the_next_request(
    server: Answers, get: Callable[[], Response], more: bytes
) -> None:
    server.answers = [[OK + more], [OK.replace(b"ok", b"me")]]
    assert [get().data, get().data] == [b"ok", b"me"]
    assert server.connected == 2


def test_what_nobody_asked_for_is_no_answer_to_the_next_request(
    server: Answers, get: Callable[[], Response]
) -> None:
    evil = OK.replace(b"ok", b"no")
    server.answers = [[OK + evil, None], [OK.replace(b"ok", b"me")]]
    server.size, server.pause = len(OK), 0.05
    assert get().data == b"ok"
    time.sleep(0.2)
    server.ended.set()
    server.ended = threading.Event()
    assert get().data == b"me"
    assert server.connected == 2


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_what_a_kept_alive_connection_swallowed_is_sent_again_if_it_writes_nothing(
    server: Answers, connections: Connections, method: str
) -> None:
    body = b"body" if method == "PUT" else b""
    server.answers = [[OK, b""], [OK]]

    def send() -> bytes:
        return connections.request(method, "/", headers={}, body=body, timeout=5).data

    assert send() == b"ok"
    if method == "GET":
        assert send() == b"ok"
        assert len(server.requests) == 3
    else:
        with pytest.raises(BrokenError, match="it closed the connection before its answer"):
            send()
        assert len(server.requests) == 2


def test_silence_is_a_timeout_that_says_how_long(server: Answers, connections: Connections) -> None:
    server.answers = [[None], [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no", None]]
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"timed out after 5\d milliseconds"):
            connections.request("GET", "/", headers={}, timeout=0.05)
        server.ended.set()
        server.ended = threading.Event()


INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"


@pytest.mark.parametrize("before", [INTERIM, HINTS, INTERIM + HINTS + HINTS])
def test_answers_of_status_1xx_precede_the_answer_and_say_nothing_of_it(
    server: Answers, get: Callable[[], Response], before: bytes
) -> None:
    server.answers = [[before + OK, before + OK]]
    for _ in range(2):
        response = get()
        assert (response.status, response.data) == (200, b"ok")
    assert server.connected == 1


def test_answers_of_status_1xx_without_end_are_broken(
    server: Answers, get: Callable[[], Response]
) -> None:
    server.answers = [[INTERIM * 20_000]]
    with pytest.raises(BrokenError, match="Too large response headers"):
        get()


DRIP = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b"x" * 1000


@pytest.mark.parametrize("size", [1, 40])
def test_the_timeout_is_for_the_whole_answer_however_slowly_it_comes(
    server: Answers, connections: Connections, size: int
) -> None:
    server.answers = [[DRIP]]
    server.size, server.pause = size, 0.05  # in its head, or after it
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        connections.request("GET", "/", headers={}, timeout=0.5)
    assert time.monotonic() - began < 3
    server.ended.set()


def test_a_stream_may_take_as_long_as_it_will_after_its_head(
    server: Answers, connections: Connections
) -> None:
    server.answers = [[CHUNKED + b"1\r\nx\r\n" * 100 + b"0\r\n\r\n"]]
    server.size, server.pause = len(CHUNKED), 0.1
    parts = parts_of(connections.stream("/", headers={}, timeout=1))
    assert b"".join(parts.chunks()) == b"x" * 100
    parts.close()


def test_a_silent_stream_ends_in_a_timeout(server: Answers, connections: Connections) -> None:
    server.answers = [[CHUNKED, None], [None]]
    server.pause = 0.5
    parts = parts_of(connections.stream("/", headers={}, timeout=0.2))
    with pytest.raises(TimeoutError, match=r"nothing came within 0\.2 s"):
        next(parts.chunks())
    parts.close()
    with pytest.raises(TimeoutError, match=r"nothing came within 0\.2 s"):
        connections.stream("/", headers={}, timeout=0.2)
    server.ended.set()


def parts_of(response: Response) -> Parts:
    assert response.parts is not None
    return response.parts


def test_a_body_that_is_larger_than_any_answer_is_not_kept(
    server: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_LARGEST_BODY", 1024 * 1024)
    connections = Connections(Server(host="127.0.0.1", port=server.port, scheme="http"))
    server.answers = [[CHUNKED + b"100000\r\n" + b"x" * 0x100000 + b"\r\n1\r\nx\r\n0\r\n\r\n"]]
    with pytest.raises(BrokenError, match="its answer has more than 1 MiB"):
        connections.request("GET", "/", headers={}, timeout=5)


def test_an_event_that_is_larger_than_any_object_ends_its_stream(
    server: Answers, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_LONGEST_EVENT", 1024 * 1024)
    event = b'{"type": "ADDED", "object": {}}\n'
    body = event + b"x" * 0x200000
    server.answers = [[CHUNKED + b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"]]
    parts = parts_of(connections.stream("/", headers={}, timeout=5))
    events = iter(stream.WatchStream(Call(verb="watch", resource=RESOURCE_CLAIMS), parts))
    assert next(events)["type"] == "ADDED"
    with pytest.raises(UnavailableError, match="an event has more than 1 MiB"):
        next(events)


def test_nobody_there_is_not_reachable(server: Answers, connections: Connections) -> None:
    server.stop()
    with pytest.raises(
        NotReachableError, match=rf"to 127.0.0.1:{server.port} .*: Connection refused"
    ):
        connections.request("GET", "/", headers={}, timeout=5)


def test_a_connection_that_takes_too_long_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it never answers the handshake
        connections = Connections(Server(host="127.0.0.1", port=silent.getsockname()[1]))
        with pytest.raises(TimeoutError, match="Connection timed out after 1"):
            connections.request("GET", "/", headers={}, timeout=0.1)


def test_trouble_with_tls_is_not_taken_for_a_server_that_is_away(server: Answers) -> None:
    secure = Connections(Server(host="127.0.0.1", port=server.port))
    server.answers = [[b""]]
    server.end = b""
    with pytest.raises(TlsError, match="unexpected eof"):
        secure.request("GET", "/", headers={}, timeout=5)


def test_a_refusal_that_comes_before_all_was_sent_is_heard(
    server: Answers, connections: Connections
) -> None:
    refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig"
    server.answers = [[refusal]]
    body = b"x" * 30_000_000
    response = connections.request("PUT", "/", headers={}, body=body, timeout=5)
    assert (response.status, response.data) == (413, b"big")


def test_a_stream_that_is_refused_is_read(server: Answers, connections: Connections) -> None:
    server.answers = [[b"HTTP/1.1 410 Gone\r\nContent-Length: 4\r\n\r\ngone"]]
    refused = connections.stream("/", headers={}, timeout=5)
    assert (refused.status, refused.data, refused.parts) == (410, b"gone", None)


def test_a_stream_ends_when_another_thread_shuts_it_down(
    server: Answers, connections: Connections
) -> None:
    server.answers = [[CHUNKED + b"2\r\nok\r\n", None]]
    parts = parts_of(connections.stream("/", headers={}, timeout=60))
    chunks = parts.chunks()
    assert next(chunks) == b"ok"
    threading.Timer(0.05, parts.shutdown).start()
    with pytest.raises(BrokenError):
        next(chunks)
    parts.close()
    parts.shutdown()  # late, and nothing


def test_a_wait_lets_other_threads_compute(server: Answers, connections: Connections) -> None:
    server.answers = [[None]]

    def wait() -> None:
        with pytest.raises(TimeoutError):
            connections.request("GET", "/", headers={}, timeout=1)

    waiting = threading.Thread(target=wait)
    waiting.start()
    began, counted = time.monotonic(), 0
    while waiting.is_alive():
        counted += 1
        time.sleep(0.001)
    assert counted > 50
    assert time.monotonic() - began < 5
    server.ended.set()


def test_ctrl_c_ends_a_wait_of_the_main_thread(server: Answers, connections: Connections) -> None:
    server.answers = [[None]]
    began = time.monotonic()
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        connections.request("GET", "/", headers={}, timeout=30)
    assert time.monotonic() - began < 10
    server.ended.set()


def test_a_date_is_told_if_it_is_asked_for(server: Answers, connections: Connections) -> None:
    dated = OK.replace(b"\r\n", b"\r\nDate: today\r\nRetry-After: 7\r\n", 1)
    server.answers = [[INTERIM + dated, dated]]
    asked = connections.request("GET", "/", headers={}, timeout=5, dated=True)
    other = connections.request("GET", "/", headers={}, timeout=5)
    assert (asked.date, other.date, other.retry_after) == ("today", None, 7)


def open_sockets() -> set[str]:
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.add(str(descriptor.readlink()))
    return {name for name in found if name.startswith("socket:")}


def test_after_close_no_connection_is_left(
    server: Answers, connections: Connections, get: Callable[[], Response]
) -> None:
    before = open_sockets()
    server.answers = [[OK, OK], [CHUNKED, OK], [OK]]
    get()
    assert len(open_sockets() - before) == 2  # both ends
    connections.close()
    parts_of(connections.stream("/", headers={}, timeout=5)).close()
    get()
    server.stop()
    assert not open_sockets() - before
