"""The HTTP endpoint, over real sockets."""

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from dra_driver.errors import SetupError
from dra_driver.ops.http import MAX_PEERS, HttpEndpoint, parse_endpoint
from dra_driver.ops.metrics import MpsMetrics

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


def metrics_page(environ: "WSGIEnvironment", start_response: "StartResponse") -> list[bytes]:
    assert environ["REQUEST_METHOD"] == "GET"
    start_response("200 OK", [("Content-Type", "text/plain; version=0.0.4")])
    return [b"up ", b"1\n"]


def broken_page(environ: "WSGIEnvironment", start_response: "StartResponse") -> list[bytes]:
    raise RuntimeError("no records")


@pytest.fixture
def endpoint() -> Iterator[HttpEndpoint]:
    endpoint = HttpEndpoint("127.0.0.1:0", {"/metrics": metrics_page, "/broken": broken_page})
    endpoint.start()
    yield endpoint
    endpoint.stop()


def ask(endpoint: HttpEndpoint, method: str, path: str) -> tuple[int, str | None, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=10)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.getheader("Content-Type"), response.read()
    finally:
        connection.close()


def test_a_page_is_served_with_its_content_type(endpoint: HttpEndpoint) -> None:
    assert ask(endpoint, "GET", "/metrics") == (200, "text/plain; version=0.0.4", b"up 1\n")


def test_a_query_does_not_change_the_page(endpoint: HttpEndpoint) -> None:
    assert ask(endpoint, "GET", "/metrics?name[]=up")[0] == 200


def test_head_has_no_body(endpoint: HttpEndpoint) -> None:
    assert ask(endpoint, "HEAD", "/metrics") == (200, "text/plain; version=0.0.4", b"")


@pytest.mark.parametrize(("method", "status"), [("GET", 404), ("POST", 501)])
def test_anything_else_is_refused(endpoint: HttpEndpoint, method: str, status: int) -> None:
    assert ask(endpoint, method, "/other")[0] == status


def test_a_page_that_cannot_be_made_is_an_error_and_the_next_is_served(
    endpoint: HttpEndpoint,
) -> None:
    assert ask(endpoint, "GET", "/broken")[0] == 500
    assert ask(endpoint, "GET", "/metrics")[0] == 200


def test_a_port_in_use_is_named(endpoint: HttpEndpoint) -> None:
    second = HttpEndpoint(f"127.0.0.1:{endpoint.port}", {})
    with pytest.raises(SetupError, match=r"cannot be listened on: Address already in use"):
        second.start()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (":8080", ("", 8080)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:9400", ("::1", 9400)),
        ("localhost:65535", ("localhost", 65535)),
    ],
)
def test_an_endpoint_is_host_and_port(text: str, parts: tuple[str, int]) -> None:
    assert parse_endpoint(text) == parts


@pytest.mark.parametrize("text", ["8080", "host", "host:", ":http", ":65536", "host:-1", ":٨"])
def test_anything_that_is_not_host_and_port_is_refused(text: str) -> None:
    with pytest.raises(SetupError, match="host:port"):
        parse_endpoint(text)


def test_an_endpoint_without_host_takes_ipv4_peers() -> None:
    endpoint = HttpEndpoint(":0", {"/metrics": metrics_page})
    endpoint.start()
    try:
        assert ask(endpoint, "GET", "/metrics")[0] == 200
    finally:
        endpoint.stop()


def test_the_health_check_needs_no_page(endpoint: HttpEndpoint) -> None:
    assert ask(endpoint, "GET", "/healthz") == (200, "text/plain; charset=utf-8", b"ok\n")


@pytest.mark.parametrize("path", ["/", "/metrics/", "/favicon.ico"])
def test_metrics_are_at_their_path_only(path: str) -> None:
    metrics = MpsMetrics(driver="gpu.nvidia.com", version="0")
    endpoint = HttpEndpoint("127.0.0.1:0", {"/metrics": metrics.wsgi_app})
    endpoint.start()
    try:
        status, kind, body = ask(endpoint, "GET", "/metrics")
        assert (status, (kind or "").partition(";")[0]) == (200, "text/plain")
        assert b"nvidia_dra_mps_daemon_deaths_total" in body
        assert ask(endpoint, "HEAD", "/metrics") == (200, kind, b"")
        assert ask(endpoint, "GET", path)[0] == 404
    finally:
        endpoint.stop()


def test_an_ipv6_address_is_listened_on() -> None:
    endpoint = HttpEndpoint("[::1]:0", {})
    try:
        endpoint.start()
    except SetupError as error:
        pytest.skip(f"no IPv6 here: {error}")
    try:
        with socket.create_connection(("::1", endpoint.port), timeout=10) as peer:
            peer.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert peer.recv(64).startswith(b"HTTP/1.0 200 OK")
    finally:
        endpoint.stop()


def test_a_silent_peer_does_not_hold_up_the_stop() -> None:
    endpoint = HttpEndpoint("127.0.0.1:0", {"/metrics": metrics_page}, request_seconds=3600)
    endpoint.start()
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=10) as peer:
        peer.sendall(b"GET /metr")
        assert ask(endpoint, "GET", "/metrics")[0] == 200
        assert endpoint.stop(3600)


def test_a_peer_that_is_silent_for_too_long_is_hung_up_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    endpoint = HttpEndpoint("127.0.0.1:0", {}, request_seconds=0.05)
    endpoint.start()
    try:
        with socket.create_connection(("127.0.0.1", endpoint.port), timeout=10) as peer:
            peer.sendall(b"GET /metr")
            assert peer.recv(64) == b""
    finally:
        endpoint.stop()
    assert "Traceback" not in capsys.readouterr().err


def test_peers_that_are_idle_keep_nobody_out(endpoint: HttpEndpoint) -> None:
    address = ("127.0.0.1", endpoint.port)
    before = threading.active_count()
    peers = [socket.create_connection(address, timeout=10) for _ in range(200)]
    try:
        for _ in range(3):
            assert ask(endpoint, "GET", "/metrics")[0] == 200
        assert threading.active_count() <= before + MAX_PEERS
        peers[0].settimeout(10)
        assert peers[0].recv(64) == b"", "the first that came is the first to go"
    finally:
        for peer in peers:
            peer.close()


def test_a_peer_that_sends_a_byte_now_and_then_has_no_more_time_than_others() -> None:
    endpoint = HttpEndpoint("127.0.0.1:0", {}, request_seconds=0.5)
    endpoint.start()
    try:
        with socket.create_connection(("127.0.0.1", endpoint.port), timeout=10) as peer:
            end = time.monotonic() + 10
            with suppress(ConnectionError):
                while time.monotonic() < end:
                    peer.sendall(b"G")
                    time.sleep(0.05)
            assert time.monotonic() < end
    finally:
        endpoint.stop()


def test_a_peer_that_does_not_read_its_answer_is_cut_off() -> None:
    def long_page(environ: "WSGIEnvironment", start_response: "StartResponse") -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"x" * 50_000_000]

    endpoint = HttpEndpoint("127.0.0.1:0", {"/long": long_page}, request_seconds=0.5)
    endpoint.start()
    try:
        before = threading.active_count()
        with socket.create_connection(("127.0.0.1", endpoint.port), timeout=10) as peer:
            peer.sendall(b"GET /long HTTP/1.0\r\n\r\n")
            assert peer.recv(1)
            end = time.monotonic() + 10
            while threading.active_count() > before and time.monotonic() < end:
                time.sleep(0.05)
            assert threading.active_count() <= before
    finally:
        endpoint.stop()
