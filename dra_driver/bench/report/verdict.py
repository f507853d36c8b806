"""The conclusion of a report: a sentence, and the recommended claim and share config. Pure.

In: a report. Out: an `Advice`. Only strategies whose tenants do the same are compared; a strategy
with a tenant without a result does not count. If the intervals of two overlap, they count as equal.
"""

from collections.abc import Sequence

from msgspec import Struct

from dra_driver.bench.model import Figure, Goal, Report
from dra_driver.bench.report.summary import Row, Spread, summary
from dra_driver.bench.report.sweep import as_claim, as_share_config
from dra_driver.bench.strategies import Sharing, Strategy
from dra_driver.bench.workload import WorkloadKind

_MOST = ("throughput", "least", "fairness", "memory fairness")
_WORDS: dict[Figure, str] = {
    "throughput": "most throughput",
    "least": "most throughput for the slowest tenant",
    "p50": "lowest median latency",
    "p99": "lowest 99th percentile of latency",
    "time": "shortest run time",
    "isolation": "least disturbance by neighbours",
    "fairness": "fairest throughput",
    "memory fairness": "fairest memory",
}
_AGAINST_ALONE = frozenset({"throughput", "least", "p50", "p99", "time"})
_TIMES = " times alone"
_SHARED = (Sharing.TIME_SLICING, Sharing.MPS, Sharing.MPS_LIMITS, Sharing.MIG)
_CLOSE = 0.02
"""For single values: a difference of less than 2 % does not count."""


class Advice(Struct, frozen=True, kw_only=True):
    """The conclusion; all empty if there is none."""

    sentence: str = ""
    strategy: Strategy | None = None
    claim: str = ""
    share_config: str = ""


def advice(report: Report) -> Advice:
    """Return the conclusion of a report."""
    rows = summary(report)
    groups = _groups(rows)
    said, chosen = [], None
    for name, of_group in groups.items():
        clauses = []
        for goal in _goals(report):
            ranked = _ranked(of_group, goal)
            if not ranked:
                continue
            clauses.append(_clause(ranked, goal))
            sharing = (row.strategy for row, _ in ranked if row.strategy.tenants > 1)
            chosen = chosen or next(sharing, None)
        if clauses:
            head = f"{name}: " if len(groups) > 1 else ""
            text = head + "; ".join(dict.fromkeys(clauses))
            said.append(f"{text[0].upper()}{text[1:]}.")
    if chosen is None:
        return Advice(sentence=" ".join(said))
    return Advice(
        sentence=" ".join(said),
        strategy=chosen,
        claim="" if chosen.sharing is Sharing.SHARES else as_claim(chosen),
        share_config=as_share_config(chosen) if _is_for_shares(chosen) else "",
    )


def _goals(report: Report) -> Sequence[Goal]:
    if report.study.goals:
        return report.study.goals
    throughput, latency = Goal(figure="throughput"), Goal(figure="p99")
    served = (each.work.kind for case in report.cases for each in case.strategy.parts)
    is_served = WorkloadKind.INFERENCE in served
    return (latency, throughput) if is_served else (throughput, latency)


def _groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows that can be compared with each other."""
    every: dict[str, list[Row]] = {}
    for row in rows:
        if row.group and row.is_whole:
            every.setdefault(row.group, []).append(row)
    return {
        name: some for name, some in every.items() if len({each.strategy.name for each in some}) > 1
    }


def _ranked(rows: Sequence[Row], goal: Goal) -> list[tuple[Row, Spread]]:
    """Return the rows that have the figure of a goal, the best first."""
    known = []
    for row in rows:
        if row.role == (goal.role or None) or (goal.role and row.strategy.roles == (goal.role,)):
            value = row.figure(goal.figure)
            if value is not None:
                known.append((row, value))
    known.sort(key=lambda pair: pair[1].mean, reverse=goal.figure in _MOST)
    return known if len(known) > 1 else []


def _clause(ranked: Sequence[tuple[Row, Spread]], goal: Goal) -> str:
    (best, value), (second, other), *_ = ranked
    last, worst = ranked[-1]
    whose = f" of {goal.role}" if goal.role else ""
    unit = _TIMES if goal.figure in _AGAINST_ALONE else ""
    what = f"{_WORDS[goal.figure]}{whose}"
    if _differ(value, other):
        return (
            f"{what}: {best.strategy.name} ({_number(value)}{unit}), then"
            f" {second.strategy.name} ({_number(other)})"
        )
    alike = [row.strategy.name for row, figure in ranked if not _differ(value, figure)]
    if len(alike) == len(ranked):
        return f"{what}: no strategy differs from another ({_number(value)}{unit})"
    return (
        f"{what}: {', '.join(alike[:-1])} and {alike[-1]} alike ({_number(value)}{unit}), "
        f"and {last.strategy.name} last ({_number(worst)})"
    )


def _differ(spread: Spread, other: Spread) -> bool:
    if spread.half is None or other.half is None:
        return abs(spread.mean - other.mean) > _CLOSE * max(abs(spread.mean), abs(other.mean))
    return spread.is_apart_from(other)


def _number(value: Spread) -> str:
    return f"{value.mean:.3g}"


def _is_for_shares(strategy: Strategy) -> bool:
    """Whether a node can give out such shares, which means that they are equal."""
    own = any(part.is_client_of_mps for part in strategy.parts)
    return strategy.sharing in _SHARED and not own and len(set(strategy.profiles)) == 1
