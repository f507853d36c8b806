"""Whether a prepared claim still has a right to its devices, by what the API server says of it."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

import make
from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.claims.state.validity import why_gone
from dra_driver.errors import AccessError, DriverError, NotFoundError, UnavailableError

RECORD = make.record()
Change = Callable[[dict[str, Any]], object]


class Server:
    """An API server with one claim, or an error."""

    def __init__(self, claim: dict[str, Any], error: DriverError | None = None) -> None:
        self.claim, self.error = claim, error

    def get_claim(self, namespace: str, name: str, *, timeout: float) -> dict[str, Any]:
        assert (namespace, name, timeout) == ("default", "claim", 7.0)
        if self.error is not None:
            raise self.error
        return self.claim


def why(
    change: Change = lambda _: None,
    *,
    record: ClaimRecord = RECORD,
    error: DriverError | None = None,
) -> str | None:
    """What is said of a claim that has gpu-0, after a change."""
    claim = make.claim_object("gpu-0")
    change(claim)
    server: Any = Server(claim, error)
    return why_gone(server, record, timeout=7.0)


def results(claim: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = claim["status"]["allocation"]["devices"]["results"]
    return found


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda claim: None, None),
        (lambda claim: claim["metadata"].update(uid="other"), "was replaced by one of UID other"),
        (lambda claim: claim.pop("status"), "is no longer allocated"),
        (lambda claim: claim["status"].update(allocation=None), "is no longer allocated"),
        (lambda claim: results(claim)[0].update(device="gpu-1"), "was allocated again"),
        (lambda claim: results(claim)[0].update(pool="node-2"), "was allocated again"),
        (lambda claim: results(claim)[0].update(shareID="s1"), "was allocated again"),
        (lambda claim: results(claim)[0].update(adminAccess=True), "was allocated again"),
        (lambda claim: results(claim).append(results(claim)[0] | {"device": "gpu-1"}),
         "was allocated again"),
        (lambda claim: results(claim).append(results(claim)[0] | {"driver": "nic", "device": "x"}),
         None),
        (lambda claim: results(claim)[0].update(driver="nic.example.com"), "was allocated again"),
    ],
)  # fmt: skip
def test_only_a_claim_with_just_these_devices_keeps_them(
    change: Change, expected: str | None
) -> None:
    assert why(change) == expected


def test_a_gone_claim_has_no_right_to_devices() -> None:
    assert why(error=NotFoundError("not found", status=404)) == "no longer exists"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda claim: claim["status"].update(allocation=7), "claim default/claim: "),
        (lambda claim: claim.update(status=7), "claim default/claim: "),
        (lambda claim: claim["metadata"].pop("uid"), "claim default/claim: "),
    ],
)
def test_a_claim_that_cannot_be_read_keeps_its_devices(change: Change, words: str) -> None:
    with pytest.raises(UnavailableError, match=words):
        why(change)


def test_an_unclear_answer_takes_no_devices() -> None:
    for error in (UnavailableError("down"), AccessError("forbidden", status=403)):
        with pytest.raises(type(error), match=str(error)):
            why(error=error)


def test_a_claim_without_a_name_is_not_asked_for() -> None:
    nameless = replace(RECORD, ref=ClaimRef(uid=RECORD.ref.uid, namespace="default", name=""))
    assert why(record=nameless) == "is known by its UID alone, and had no pod here"
