"""The HTTP endpoint, over real sockets."""

import http.client
from collections.abc import Iterator

import pytest

from dra_driver.errors import SetupError
from dra_driver.ops.http import HttpEndpoint, parse_endpoint


def metrics_page() -> tuple[bytes, str]:
    return b"up 1\n", "text/plain; version=0.0.4"


def broken_page() -> tuple[bytes, str]:
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
