"""What was found, for people and for programs. Pure: outcomes in, text out.

What comes from files and from the cluster may be anything: control characters, by which a text
could write over a terminal, are shown as what they are.
"""

import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence

from dra_driver.admin.doctor.checks.finding import ADMIN, Finding, Severity, Skipped
from dra_driver.admin.doctor.runner import Outcome
from dra_driver.words import count
from resource_nvidia_com.printable import printable

_WIDTH = 100
_LONGEST = 2000
_ORDER = (Severity.OK, Severity.INFO, Severity.UNKNOWN, Severity.WARNING, Severity.ERROR)


def status_of(outcomes: Iterable[Outcome]) -> int:
    """Return the exit status: 1 if there is an error, 2 if nothing was learnt, else 0."""
    findings = [outcome for outcome in outcomes if isinstance(outcome, Finding)]
    if any(finding.severity is Severity.ERROR for finding in findings):
        return 1
    return 0 if any(finding.is_answer for finding in findings) else 2


def as_text(outcomes: Sequence[Outcome]) -> str:
    """Return it for people: what is fine on a line, then what is wrong with reason and advice.

    What is worst comes last, just above the prompt. Checks that would need the rights of an admin
    share a line above.
    """
    given = [outcome for outcome in outcomes if isinstance(outcome, Finding)]
    findings = sorted(given, key=lambda finding: _ORDER.index(finding.severity))
    skipped = [outcome for outcome in outcomes if isinstance(outcome, Skipped)]
    width = max((len(finding.id) for finding in findings), default=0)
    forbidden = [finding for finding in findings if _is_forbidden(finding)]
    lines: list[str] = []
    if forbidden:
        names = ", ".join(dict.fromkeys(outcome.id for outcome in forbidden))
        lines += ["", "not checked, because permissions are missing:"]
        lines += _wrapped(f"{names}: {ADMIN}", "  ", "    ")
    if skipped:
        lines += ["", "not checked:"]
        for reason in dict.fromkeys(outcome.reason for outcome in skipped):
            names = ", ".join(outcome.id for outcome in skipped if outcome.reason == reason)
            lines += _wrapped(f"{_plain(reason)}: {names}", "  ", "    ")
    lines = [*lines[1:], ""] if lines else []
    lines += [
        line for finding in findings if finding not in forbidden for line in _lines(finding, width)
    ]
    return "\n".join([*lines, "", _summary(findings)]) + "\n"


def as_json(outcomes: Sequence[Outcome], version: str) -> str:
    """Return it for programs."""
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


def _is_forbidden(finding: Finding) -> bool:
    return finding.severity is Severity.UNKNOWN and finding.advice == ADMIN


def _lines(finding: Finding, width: int) -> Iterable[str]:
    first = f"{finding.severity:<7}  {finding.id:<{width}}  "
    below = " " * len(first)
    yield from _wrapped(_plain(finding.seen), first, below)
    if finding.severity in {Severity.ERROR, Severity.WARNING}:
        yield from _wrapped(f"why: {finding.why}", below, below + "     ")
    if finding.advice:
        yield from _wrapped(f"do:  {_plain(finding.advice)}", below, below + "     ")


def _wrapped(text: str, first: str, below: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH + len(first),
        initial_indent=first,
        subsequent_indent=below,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _plain(text: str) -> str:
    """Return a text without what a terminal would act on, on one line."""
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return printable(" ".join(short.split()))


def _counts(findings: Iterable[Finding]) -> dict[str, int]:
    counted = Counter(finding.severity for finding in findings)
    return {str(severity): counted[severity] for severity in Severity}


def _summary(findings: Sequence[Finding]) -> str:
    counts = _counts(findings)
    errors, warnings = (count(counts[kind], kind) for kind in (Severity.ERROR, Severity.WARNING))
    rest = (Severity.UNKNOWN, Severity.INFO, Severity.OK)
    return ", ".join((errors, warnings, *(f"{counts[kind]} {kind}" for kind in rest)))
