"""Responses of the API server as errors a person can act on."""

import json

import pytest

from dra_driver.errors import (
    AccessError,
    ApiError,
    GoneError,
    InvalidError,
    NotFoundError,
    StaleError,
    UnavailableError,
)
from dra_driver.kube.resource import NODES, RESOURCE_CLAIMS, Call
from dra_driver.kube.responses import error_in, error_in_event, object_in
from resource_nvidia_com.problems import DuplicateKeys

CALL = Call(verb="get", resource=RESOURCE_CLAIMS, namespace="team", name="web")


def status(**fields: object) -> bytes:
    return json.dumps({"kind": "Status", "status": "Failure", **fields}).encode()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, InvalidError),
        (401, AccessError),
        (403, AccessError),
        (405, ApiError),
        (408, UnavailableError),
        (409, StaleError),
        (410, GoneError),
        (413, InvalidError),
        (422, InvalidError),
        (429, UnavailableError),
        (500, UnavailableError),
        (504, UnavailableError),
    ],
)
def test_each_status_has_its_error(code: int, kind: type[Exception]) -> None:
    error = error_in(CALL, code, status(message="said so"))
    assert type(error) is kind
    assert "cannot get resourceclaims team/web: " in str(error)
    assert "said so" in str(error)


def test_a_duplicate_key_is_remembered() -> None:
    value = object_in(CALL, b'{"parameters": {"b": 1, "b": 2}, "c": []}')
    assert value == {"parameters": {"b": 2}, "c": []}
    assert isinstance(value["parameters"], DuplicateKeys)
    assert type(value) is dict


def test_only_a_status_that_names_the_object_says_that_it_is_missing() -> None:
    missing = status(reason="NotFound", details={"name": "web"})
    assert type(error_in(CALL, 404, missing)) is NotFoundError
    no_api = status(reason="NotFound", message="the server could not find the requested resource")
    empty_details = status(reason="NotFound", details={})
    for body in (b"404 page not found\n", b"", b"[]", status(message="no"), no_api, empty_details):
        error = error_in(CALL, 404, body)
        assert type(error) is ApiError
        assert "does not serve resource.k8s.io/v1" in str(error)


@pytest.mark.parametrize(
    ("header", "body", "seconds"),
    [
        ("3", b"", 3),
        (None, status(details={"retryAfterSeconds": 4}), 4),
        ("5", status(details={"retryAfterSeconds": 4}), 5),
        ("99999999999", b"", 300),
        ("86400", b"", 300),
        ("Wed, 21 Oct 2026 07:28:00 GMT", b"", None),
        ("-1", b"", None),
        ("٣", b"", None),
        (None, b"", None),
    ],
)
def test_retry_after_is_taken_from_the_header_then_from_the_status(
    header: str | None, body: bytes, seconds: float | None
) -> None:
    error = error_in(CALL, 429, body, retry_after=header)
    assert isinstance(error, UnavailableError)
    assert error.retry_after == seconds


def test_a_long_page_of_a_proxy_is_cut() -> None:
    assert len(str(error_in(CALL, 502, b"<html>" * 10_000))) < 1200


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"3", b"\xff"])
def test_a_success_that_is_not_an_object_is_an_error(body: bytes) -> None:
    with pytest.raises(UnavailableError):
        object_in(CALL, body)


def test_an_error_event_is_the_error_of_its_code() -> None:
    assert type(error_in_event(CALL, {"code": 410, "message": "too old"})) is GoneError
    assert type(error_in_event(CALL, {})) is UnavailableError


def test_a_call_is_described_in_words() -> None:
    assert str(Call(verb="list", resource=NODES)) == "list nodes"
    assert str(Call(verb="get", resource=NODES, name="n1")) == "get nodes n1"
    assert (
        str(Call(verb="list", resource=RESOURCE_CLAIMS, namespace="team"))
        == "list resourceclaims in namespace team"
    )


def test_a_path_quotes_special_characters() -> None:
    assert NODES.path("n1") == "/api/v1/nodes/n1"
    assert (
        RESOURCE_CLAIMS.path("a/b?c", namespace="x y")
        == "/apis/resource.k8s.io/v1/namespaces/x%20y/resourceclaims/a%2Fb%3Fc"
    )
    assert RESOURCE_CLAIMS.path() == "/apis/resource.k8s.io/v1/resourceclaims"
