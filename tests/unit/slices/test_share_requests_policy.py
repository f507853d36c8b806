"""The admission policy of requests for shares refuses what the driver would refuse later."""

from collections.abc import Sequence
from typing import Any

import pytest

from dra_driver.devices.names import share_suffix
from policies import refusal, unneeded


def share(kind: str, index: int, of: str = "gpu-0", **result: Any) -> dict[str, Any]:
    """A share in an allocation result."""
    device = f"{of}{share_suffix(kind, index, 4)}"
    return {"driver": "gpu.nvidia.com", "pool": "n1", "request": "gpu", "device": device, **result}


def claim(results: Sequence[Any] | None) -> dict[str, Any]:
    status = {} if results is None else {"allocation": {"devices": {"results": list(results)}}}
    return {"metadata": {"name": "c"}, "status": status}


def said(results: Sequence[Any], before: Sequence[Any] | None = None) -> str | None:
    """What the scheduler is answered that allocates this; None: it may."""
    return refusal("share-requests", claim(results), claim(before))


SINGLE, BY_MPS = "single-share", "mps-share"
MIG = "gpu-0-mig-2g20gb-14-0"


@pytest.mark.parametrize(
    "results",
    [
        [],
        [share(SINGLE, 0)],
        [share(SINGLE, 0, request="a"), share(SINGLE, 1, request="b")],
        [share(SINGLE, n, adminAccess=True) for n in range(4)],
        [share(BY_MPS, n) for n in range(4)],
        [share(BY_MPS, 0, MIG), share(BY_MPS, 1, MIG)],
        [share(BY_MPS, 0, request="a"), share(BY_MPS, 0, "gpu-1", request="b")],
        [share(BY_MPS, 0, adminAccess=True), share(BY_MPS, 0, "gpu-1", adminAccess=True)],
        [share("share", 0), share("share", 1), share("share", 0, "gpu-1")],
        [share(SINGLE, n, driver="other.example.com") for n in range(2)],
        [share(SINGLE, 0), {**share(SINGLE, 0), "device": "gpu-1"}],
    ],
)
def test_allowed_requests_are_allocated(results: list[Any]) -> None:
    assert said(results) is None


@pytest.mark.parametrize("other", [share(SINGLE, 1), share(SINGLE, 0, "gpu-1")])
def test_several_of_which_a_request_may_have_one_are_refused(other: Any) -> None:
    mixed = [share(BY_MPS, 0, request="x"), share(SINGLE, 0), other]
    assert said(mixed) == (
        "request gpu asks for several shares, and here a request may have only one: the share "
        "config sets failRequestsGreaterThanOne; ask for 1"
    )


@pytest.mark.parametrize(
    ("one", "other"), [("gpu-0", "gpu-1"), (MIG, "gpu-0-mig-2g20gb-14-2"), ("gpu-1", "gpu-11")]
)
def test_shares_of_several_devices_are_refused_under_mps(one: str, other: str) -> None:
    answer = said([share(BY_MPS, 0, one), share(BY_MPS, 1, one), share(BY_MPS, 0, other)])
    assert answer is not None
    assert "request gpu would get shares of several devices, and under MPS" in answer
    assert "matchAttribute: gpu.nvidia.com/uuid" in answer
    assert "belongs on nodes with one divided device" in answer


def test_claims_that_are_allocated_already_are_passed_over() -> None:
    there = [share(SINGLE, 0), share(SINGLE, 1)]
    assert said(there, before=there) is None


def test_every_rule_is_needed() -> None:
    of_two = [[share(kind, 0), share(kind, 0, "gpu-1")] for kind in (SINGLE, BY_MPS)]
    asked = [{"new": claim(results), "old": claim(None)} for results in of_two]
    assert unneeded("share-requests", asked) == []
