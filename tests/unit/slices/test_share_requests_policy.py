"""The admission policy of requests for shares refuses what the driver would refuse later."""

from collections.abc import Sequence
from typing import Any

import pytest
from testbed import manifests

from dra_driver.admin.cel.evaluate import value_of
from dra_driver.admin.cel.parser import parsed
from dra_driver.devices.names import share_suffix

(POLICY,) = (
    one
    for one in manifests.installed("ValidatingAdmissionPolicy")
    if one["metadata"]["name"].endswith("share-requests")
)
SPEC = POLICY["spec"]


def share(kind: str, index: int, of: str = "gpu-0", **result: Any) -> dict[str, Any]:
    """A share in an allocation result."""
    device = f"{of}{share_suffix(kind, index, 4)}"
    return {"driver": "gpu.nvidia.com", "pool": "n1", "request": "gpu", "device": device, **result}


def claim(results: Sequence[Any] | None) -> dict[str, Any]:
    status = {} if results is None else {"allocation": {"devices": {"results": list(results)}}}
    return {"metadata": {"name": "c"}, "status": status}


def refusal(results: Sequence[Any], before: Sequence[Any] | None = None) -> str | None:
    """What the scheduler is answered that allocates this; None: it may."""
    names: dict[str, Any] = {"object": claim(results), "oldObject": claim(before)}
    for condition in SPEC["matchConditions"]:
        if not value_of(parsed(condition["expression"]), names):
            return None
    variables: dict[str, object] = {}
    names["variables"] = variables
    for variable in SPEC["variables"]:
        variables[variable["name"]] = value_of(parsed(variable["expression"]), names)
    for validation in SPEC["validations"]:
        if not value_of(parsed(validation["expression"]), names):
            return str(value_of(parsed(validation["messageExpression"]), names))
    return None


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
def test_what_a_request_may_have_is_allocated(results: list[Any]) -> None:
    assert refusal(results) is None


@pytest.mark.parametrize("other", [share(SINGLE, 1), share(SINGLE, 0, "gpu-1")])
def test_several_of_which_a_request_may_have_one_are_refused(other: Any) -> None:
    mixed = [share(BY_MPS, 0, request="x"), share(SINGLE, 0), other]
    assert refusal(mixed) == (
        "request gpu asks for several shares, and here a request may have only one: the share "
        "config sets failRequestsGreaterThanOne; ask for 1"
    )


@pytest.mark.parametrize(
    ("one", "other"), [("gpu-0", "gpu-1"), (MIG, "gpu-0-mig-2g20gb-14-2"), ("gpu-1", "gpu-11")]
)
def test_shares_of_several_devices_are_refused_under_mps(one: str, other: str) -> None:
    said = refusal([share(BY_MPS, 0, one), share(BY_MPS, 1, one), share(BY_MPS, 0, other)])
    assert said is not None
    assert "request gpu would get shares of several devices, and under MPS" in said
    assert "matchAttribute: gpu.nvidia.com/uuid" in said
    assert "belongs on nodes with one divided device" in said


def test_claims_that_are_allocated_already_are_passed_over() -> None:
    there = [share(SINGLE, 0), share(SINGLE, 1)]
    assert refusal(there, before=there) is None
