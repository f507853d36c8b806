"""What was seen of pods, as figures: how long each part took, in milliseconds.

In: the marks of pods, what the driver's log says of their claims, and when their programs began.
Out: durations of each pod by name, their median and 99th percentile, ratios to the pods without a
claim, and a table. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from testbed.api import Object

from bench import comparison
from bench.pods.answers import Answered, Span
from bench.pods.variants import BASELINE, VARIANTS
from bench.pods.watching import Mark, Seen
from bench.timings import summary
from dra_driver.admin.table import aligned

START = "created → running"
END = "deleted → gone"
PREPARE = "prepare"
UNPREPARE = "unprepare"
_WITH_P99 = (START, END, PREPARE, UNPREPARE)
"""What a table has the 99th percentile of, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One pod from its making to its end; `program` is when its program began."""

    variant: str
    at_once: int
    seen: Seen
    program: float
    answered: Answered = field(default_factory=Answered)


def durations(life: Life) -> dict[str, float]:
    """Return how long each part took, in milliseconds; parts without their marks are left out.

    The driver's log, the container and this program have the same machine's clock.
    """
    at, spans = life.seen.at, life.answered.spans
    prepare, unprepare = _ends(spans.get("prepare")), _ends(spans.get("unprepare"))
    created, scheduled, running = map(at.get, (Mark.CREATED, Mark.SCHEDULED, Mark.RUNNING))
    deleted, gone = map(at.get, (Mark.DELETED, Mark.GONE))
    parts = {
        START: (created, running),
        "created → claim made": (created, at.get(Mark.CLAIMED)),
        "claim made → allocated": (at.get(Mark.CLAIMED), at.get(Mark.ALLOCATED)),
        "created → scheduled": (created, scheduled),
        "scheduled → prepare": (scheduled, prepare[0]),
        PREPARE: prepare,
        "prepare → program": (prepare[1], life.program),
        "scheduled → program": (scheduled, life.program),
        "program → running": (life.program, running),
        END: (deleted, gone),
        "deleted → unprepare": (deleted, unprepare[0]),
        UNPREPARE: unprepare,
        "unprepare → gone": (unprepare[1], gone),
    }
    return {
        name: round((end - begin) * 1000, 2)
        for name, (begin, end) in parts.items()
        if begin is not None and end is not None
    }


def _ends(span: Span | None) -> tuple[float | None, float | None]:
    return (None, None) if span is None else (span.began, span.ended)


def summarised(lives: Sequence[Life]) -> list[Object]:
    """Return a case for each number of pods at once: its variants, and their ratios."""
    cases = []
    for at_once in dict.fromkeys(life.at_once for life in lives):
        of_case = [life for life in lives if life.at_once == at_once]
        variants = {
            name: _variant([life for life in of_case if life.variant == name])
            for name in sorted({life.variant for life in of_case}, key=VARIANTS.index)
        }
        columns = {name: _figures(one) for name, one in variants.items()}
        ratios = comparison.ratios(columns, BASELINE)
        cases.append({"at_once": at_once, "variants": variants, "ratios": ratios})
    return cases


def table(case: Object) -> list[str]:
    """Return the lines of a table: a column for each variant."""
    columns = {name: _figures(one) for name, one in case["variants"].items()}
    several = "one pod" if case["at_once"] == 1 else f"{case['at_once']} pods at once"
    title = f"{several}, milliseconds; in parentheses ÷ {BASELINE}"
    refused = [
        f"{name}: the driver refused {one['refused']} calls"
        for name, one in case["variants"].items()
        if one["refused"]
    ]
    return [title, *aligned(comparison.rows(columns, BASELINE)), *refused]


def _variant(lives: Sequence[Life]) -> Object:
    by_name: dict[str, list[float]] = {}
    for life in lives:
        for name, value in durations(life).items():
            by_name.setdefault(name, []).append(value)
    return {
        "durations": {name: summary(values) for name, values in by_name.items()},
        "refused": sum(life.answered.failures for life in lives),
    }


def _figures(variant: Object) -> dict[str, float]:
    return {
        f"{name}, {share}": taken[f"{share}_ms"]
        for name, taken in variant["durations"].items()
        for share in (("p50", "p99") if name in _WITH_P99 else ("p50",))
    }
