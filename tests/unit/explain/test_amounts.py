"""What is consumed of a capacity, by its policy."""

import pytest

from dra_driver.admin.api.objects import nanos
from dra_driver.admin.api.slices import Capacity, Policy
from dra_driver.admin.explain.amounts import NotCountableError, Shortage, consumed, shortage

RANGE = Policy(default=nanos("1Gi"), least=nanos("1Gi"), step=nanos("1Gi"))
BOUNDED = Policy(default=nanos("2"), least=nanos("2"), most=nanos("6"), step=nanos("2"))
VALUES = Policy(default=nanos("2"), values=(nanos("2"), nanos("4")))
FINE = Policy(default=nanos("500m"), least=nanos("250m"), step=nanos("250m"))
FREE = Policy(default=nanos("1"))


@pytest.mark.parametrize(
    ("policy", "asked", "amount"),
    [
        (None, None, "8Gi"),
        (None, "3Gi", "3Gi"),
        (RANGE, None, "1Gi"),
        (RANGE, "1", "1Gi"),
        (RANGE, "1500Mi", "2Gi"),
        (BOUNDED, "5", "6"),
        (VALUES, "1", "2"),
        (VALUES, "3", "4"),
        (VALUES, "5", "5"),
        (FINE, "300m", "500m"),
        (FINE, "750m", "750m"),
        (FREE, None, "1"),
        (FREE, "7", "7"),
    ],
)
def test_amounts_that_a_request_consumes(
    policy: Policy | None, asked: str | None, amount: str
) -> None:
    capacities = {"memory": Capacity(total=nanos("8Gi"), policy=policy)}
    asks = {} if asked is None else {"memory": nanos(asked)}
    assert consumed(capacities, asks) == {"memory": nanos(amount)}


@pytest.mark.parametrize(
    ("policy", "asked", "lacks"),
    [(BOUNDED, "7", True), (BOUNDED, "6", False), (VALUES, "5", True), (None, "9Gi", True)],
)
def test_amounts_that_a_device_does_not_have(
    policy: Policy | None, asked: str, *, lacks: bool
) -> None:
    capacities = {"memory": Capacity(total=nanos("8Gi"), policy=policy)}
    assert (shortage(capacities, {"memory": nanos(asked)}) is not None) == lacks


def test_allocated_amounts_are_not_free() -> None:
    capacities = {"memory": Capacity(total=nanos("8Gi"), policy=RANGE)}
    asked, taken = {"memory": nanos("4Gi")}, {"memory": nanos("5Gi")}
    assert shortage(capacities, asked) is None
    assert shortage(capacities, asked, taken) == Shortage(
        name="memory", wanted=nanos("4Gi"), total=nanos("8Gi"), taken=nanos("5Gi")
    )


def test_amounts_that_the_scheduler_cannot_count_end_its_attempt() -> None:
    capacities = {"cores": Capacity(total=nanos("8"), policy=FINE)}
    with pytest.raises(NotCountableError):
        consumed(capacities, {"cores": 1 + nanos("1")})
    with pytest.raises(NotCountableError):
        consumed(capacities, {"cores": nanos("9E") * 10**6})
