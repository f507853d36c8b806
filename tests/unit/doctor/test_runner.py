"""Checks are made side by side; none takes another along."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from dra_driver.admin.doctor.checks.finding import (
    ADMIN,
    Finding,
    Place,
    Seen,
    Severity,
    Skipped,
    ok,
)
from dra_driver.admin.doctor.every_check import Check
from dra_driver.admin.doctor.runner import run_checks
from dra_driver.admin.doctor.sources import Sources
from dra_driver.errors import AccessError, DeviceError, SetupError, UnavailableError


def check(
    name: str,
    look: Callable[[Any], Iterable[Seen]],
    *needs: Place,
    silence: Severity = Severity.UNKNOWN,
) -> Check:
    return Check(
        id=name,
        title=name.title(),
        why="it matters",
        needs=frozenset(needs or {Place.NODE}),
        look=look,
        silence=silence,
    )


def well(_: object) -> list[Seen]:
    return [ok("well")]


def raising(error: Exception) -> Callable[[object], Iterator[Seen]]:
    def look(_: object) -> Iterator[Seen]:
        yield ok("begun")
        raise error

    return look


def run(*checks: Check, missing: dict[Place, str] | None = None) -> list[Any]:
    return run_checks(checks, Sources(places=None, cluster=None), missing=missing or {}, seconds=30)


def test_findings_come_in_the_checks_order_with_the_reason() -> None:
    first, second = run(check("one", well), check("two", well))
    assert (first.id, second.id) == ("one", "two")
    assert first == Finding(
        id="one", title="One", severity=Severity.OK, seen="well", why="it matters", advice=""
    )


@pytest.mark.parametrize(
    ("error", "severity", "seen", "advice"),
    [
        (DeviceError("it is lost; reset it"), Severity.ERROR, "it is lost", "reset it"),
        (UnavailableError("it is away"), Severity.ERROR, "it is away", ""),
        (AccessError("who?", status=401), Severity.ERROR, "who?", ""),
        (AccessError("no", status=403), Severity.UNKNOWN, "no", ADMIN),
        (SetupError("there is none"), Severity.UNKNOWN, "there is none", ""),
        (ZeroDivisionError("x"), Severity.UNKNOWN, "the check failed: ZeroDivisionError: x", ""),
        (RecursionError(), Severity.UNKNOWN, "the check failed: RecursionError: ", ""),
    ],
)
def test_a_check_that_fails_is_a_finding_and_the_others_are_made(
    error: Exception, severity: Severity, seen: str, advice: str
) -> None:
    bad, good = run(check("bad", raising(error), silence=Severity.ERROR), check("good", well))
    assert (bad.severity, bad.seen, bad.advice) == (severity, seen, advice)
    assert not bad.is_answer
    assert good.severity is Severity.OK


def test_a_users_missing_permission_gives_no_driver_advice() -> None:
    error = AccessError("cannot list nodes; grant the verb to this driver", status=403)
    (finding,) = run(check("one", raising(error)))
    assert finding.severity is Severity.UNKNOWN
    assert "admin's kubeconfig" in finding.advice


def test_checks_without_their_place_are_skipped_with_the_reason() -> None:
    both = check("both", well, *Place)
    node, cluster = check("node", well, Place.NODE), check("cluster", well, Place.CLUSTER)
    outcomes = run(node, cluster, both, missing={Place.NODE: "no node"})
    assert outcomes[0] == Skipped(id="node", title="Node", reason="no node")
    assert [type(outcome) for outcome in outcomes] == [Skipped, Finding, Finding]
    nothing = run(both, missing={Place.NODE: "no node", Place.CLUSTER: "no cluster"})
    assert nothing == [Skipped(id="both", title="Both", reason="no node; no cluster")]
