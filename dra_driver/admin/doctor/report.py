"""Findings, for people and for programs. Pure: outcomes in, text out.

Text from files and from the cluster is not trusted: control characters, which a terminal would act
on, are escaped.
"""

import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from dra_driver.admin.doctor.checks.finding import ADMIN, Finding, Severity, Skipped
from dra_driver.admin.doctor.runner import Outcome
from dra_driver.host.words import count
from resource_nvidia_com.printable import printable

WIDTH = 100
"""The longest line, even on a wider terminal: longer ones are hard to read."""

_LONGEST = 2000
_ORDER = tuple(reversed(Severity))
_WRONG = frozenset({Severity.ERROR, Severity.WARNING})


def status_of(outcomes: Iterable[Outcome]) -> int:
    """Return the exit status: 1 if there is an error, 2 if no check got an answer, else 0."""
    findings = [outcome for outcome in outcomes if isinstance(outcome, Finding)]
    if any(finding.severity is Severity.ERROR for finding in findings):
        return 1
    return 0 if any(finding.is_answer for finding in findings) else 2


def as_text(outcomes: Sequence[Outcome], *, verbose: bool = False, width: int = WIDTH) -> str:
    """Return the findings for people, with reason and advice, and how many there are.

    The most severe come last, just above the prompt. Checks that found nothing wrong are counted,
    and shown only if `verbose`. Those that need an admin's permissions share one line at the top.
    """
    given = [outcome for outcome in outcomes if isinstance(outcome, Finding)]
    findings = sorted(given, key=lambda finding: _ORDER.index(finding.severity))
    unknown = (finding for finding in findings if finding.severity is Severity.UNKNOWN)
    forbidden = [finding for finding in unknown if finding.advice == ADMIN]
    lines = _not_made([one for one in outcomes if isinstance(one, Skipped)], verbose=verbose)
    if forbidden:
        names = ", ".join(dict.fromkeys(finding.id for finding in forbidden))
        lines += [f"not checked, because permissions are missing: {names}: {ADMIN}"]
    lines = [_wrapped(line, width, below=2) for line in lines]
    is_apart = bool(lines)
    shown = [
        finding
        for finding in findings
        if finding not in forbidden and (verbose or finding.severity is not Severity.OK)
    ]
    for (severity, *_), alike in groupby(shown, lambda one: (one.severity, one.id, one.advice)):
        lines += [""] if is_apart or severity in _WRONG else []
        lines += _lines(list(alike), width)
        is_apart = False
    lines += ["", _summary(findings, verbose=verbose)]
    return "\n".join(lines).lstrip("\n") + "\n"


def as_json(outcomes: Sequence[Outcome], version: str) -> str:
    """Return the findings as JSON."""
    findings = [outcome for outcome in outcomes if isinstance(outcome, Finding)]
    document = {
        "version": version,
        "summary": _counts(findings),
        "findings": [
            {
                "id": finding.id,
                "title": finding.title,
                "severity": str(finding.severity),
                "seen": finding.seen,
                "why": finding.why,
                "advice": finding.advice,
            }
            for finding in findings
        ],
        "skipped": [
            {"id": outcome.id, "title": outcome.title, "reason": outcome.reason}
            for outcome in outcomes
            if isinstance(outcome, Skipped)
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def _not_made(skipped: Sequence[Skipped], *, verbose: bool) -> list[str]:
    lines = []
    for reason in dict.fromkeys(outcome.reason for outcome in skipped):
        names = [outcome.id for outcome in skipped if outcome.reason == reason]
        which = f" ({', '.join(names)})" if verbose else ""
        lines += [f"{count(len(names), 'check')} skipped{which}: {_plain(reason)}"]
    return lines


def _lines(alike: Sequence[Finding], width: int) -> Iterable[str]:
    """Return the lines of one check's findings that share their advice."""
    for one in alike:
        yield _wrapped(f"{one.severity:<7}  {one.id}: {_plain(one.seen)}", width, below=9)
    if one.severity in _WRONG:
        yield _wrapped(f"         why: {one.why}", width, below=14)
    if one.advice:
        yield _wrapped(f"         do:  {_plain(one.advice)}", width, below=14)


def _wrapped(line: str, width: int, *, below: int) -> str:
    return textwrap.fill(
        line,
        width,
        subsequent_indent=" " * below,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _plain(text: str) -> str:
    """Return a text on one line, with control characters escaped."""
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return printable(" ".join(short.split()))


def _counts(findings: Iterable[Finding]) -> dict[str, int]:
    counted = Counter(finding.severity for finding in findings)
    return {str(severity): counted[severity] for severity in Severity}


def _summary(findings: Sequence[Finding], *, verbose: bool) -> str:
    counts = _counts(findings)
    parts = [count(counts[kind], kind) for kind in (Severity.ERROR, Severity.WARNING)]
    parts += [f"{counts[k]} {k}" for k in (Severity.UNKNOWN, Severity.INFO) if counts[k]]
    worse = {finding.id for finding in findings if finding.severity is not Severity.OK}
    if fine := len({finding.id for finding in findings} - worse):
        hint = "" if verbose else " (-v shows them)"
        parts += [f"{count(fine, 'check')} found nothing wrong{hint}"]
    return ", ".join(parts)
