"""Runs the checks in parallel, with a time limit.

Each check runs on its own thread. If one fails, that is a finding. If one hangs, in NVML or on a
dead file system, its thread is abandoned and the timeout reported, along with all other findings.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus

from dra_driver.admin.doctor.checks.finding import (
    Finding,
    Place,
    Seen,
    Severity,
    Skipped,
    of_error,
    unknown,
)
from dra_driver.admin.doctor.every_check import Check
from dra_driver.admin.doctor.facts.once import begun
from dra_driver.admin.doctor.sources import Sources
from dra_driver.errors import AccessError, DeviceError, DriverError, TransientError

Outcome = Finding | Skipped


def run_checks(
    checks: Sequence[Check],
    sources: Sources,
    *,
    missing: Mapping[Place, str],
    seconds: float,
) -> list[Outcome]:
    """Run checks and return their outcomes in order; `missing` says why a place is not there."""
    end = time.monotonic() + seconds
    runs = {
        check.id: begun(f"doctor-{check.id}", partial(_seen, check, sources))
        for check in checks
        if _why_skipped(check, missing) is None
    }
    outcomes: list[Outcome] = []
    for check in checks:
        if (reason := _why_skipped(check, missing)) is not None:
            outcomes.append(Skipped(id=check.id, title=check.title, reason=reason))
            continue
        left = max(0.0, end - time.monotonic())
        outcomes += findings_of(check, lambda: runs[check.id].result(left), seconds)  # noqa: B023
    return outcomes


def findings_of(check: Check, answer: Callable[[], list[Seen]], seconds: float) -> list[Finding]:
    """Return what a check found, or how it failed."""
    is_answer = False
    try:
        seen = answer()
        is_answer = True
    except TimeoutError:
        seen = [
            Seen(
                severity=check.silence,
                text=f"no answer in {seconds:g} s",
                advice="for the node see dmesg; try again with a longer --timeout",
            )
        ]
    except (DeviceError, TransientError) as error:
        seen = [of_error(check.silence, error)]
    except DriverError as error:
        # A missing permission leaves the answer open; a rejected identity is as bad as silence.
        is_unknown = isinstance(error, AccessError) and error.status == HTTPStatus.UNAUTHORIZED
        seen = [of_error(check.silence if is_unknown else Severity.UNKNOWN, error)]
    except Exception as error:  # noqa: BLE001 (a failing check must not affect the others)
        seen = [unknown(f"the check failed: {type(error).__name__}: {error}")]
    return [
        Finding(
            id=check.id,
            title=check.title,
            severity=look.severity,
            seen=look.text,
            why=check.why,
            advice=look.advice,
            is_answer=is_answer,
        )
        for look in seen
    ]


def _why_skipped(check: Check, missing: Mapping[Place, str]) -> str | None:
    if check.needs - missing.keys():
        return None
    return "; ".join(missing[place] for place in Place if place in check.needs)


def _seen(check: Check, sources: Sources) -> list[Seen]:
    return list(check.look(sources))
