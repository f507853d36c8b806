"""Measurements of pods as figures: medians, 99th percentiles, ratios to the baseline. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.api import Object

from bench import comparison
from bench.pods.variants import BASELINE, EVERY_VARIANT
from bench.timings import summary
from dra_driver.admin.output import aligned

CLAIMED = "created → claim made"
SCHEDULED = "created → scheduled"
START = "created → running"
END = "deleted → gone"
CPU = "CPU time of who serves it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One pod from its creation to its end: milliseconds by the name of what took them.

    `refused`: how often the driver refused its claims.
    """

    variant: str
    at_once: int
    took: Mapping[str, float]
    refused: int = 0


def summarised(lives: Sequence[Life]) -> list[Object]:
    """Return a case for each number of concurrent pods: its variants, and their ratios."""
    cases = []
    for at_once in dict.fromkeys(life.at_once for life in lives):
        of_case = [life for life in lives if life.at_once == at_once]
        variants = {
            name: _variant([life for life in of_case if life.variant == name])
            for name in sorted({life.variant for life in of_case}, key=EVERY_VARIANT.index)
        }
        columns = {name: _figures(variant) for name, variant in variants.items()}
        ratios = comparison.ratios(columns, BASELINE)
        cases.append({"at_once": at_once, "variants": variants, "ratios": ratios})
    return cases


def table(case: Object) -> list[str]:
    """Return the lines of a table: a column for each variant."""
    columns = {name: _figures(variant) for name, variant in case["variants"].items()}
    several = "one pod" if case["at_once"] == 1 else f"{case['at_once']} pods at once"
    title = f"{several}, milliseconds; in parentheses ÷ {BASELINE}"
    refused = [
        f"{name}: the driver refused {variant['refused']} calls"
        for name, variant in case["variants"].items()
        if variant["refused"]
    ]
    return [title, *aligned(comparison.rows(columns, BASELINE)), *refused]


def _variant(lives: Sequence[Life]) -> Object:
    by_name: dict[str, list[float]] = {}
    for life in lives:
        for name, value in life.took.items():
            by_name.setdefault(name, []).append(value)
    return {
        "durations": {name: summary(values) for name, values in by_name.items()},
        "refused": sum(life.refused for life in lives),
    }


def _figures(variant: Object) -> dict[str, float]:
    return {
        f"{name}, {share}": taken[f"{share}_ms"]
        for name, taken in variant["durations"].items()
        for share in ("p50", "p99")
    }
