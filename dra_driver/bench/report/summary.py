"""A report by strategies: all repetitions of one together, and then each of its roles. Pure.

Repetitions are given as their mean and its 95 % confidence interval by Student's t, which is wider
for fewer repetitions. It says nothing about what all repetitions have in common, such as the card.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from dra_driver.bench.model import Case, Figure, Report, Result
from dra_driver.bench.report.figures import (
    Comparison,
    bases,
    compared,
    of_role,
    relation_of,
    undisturbed,
)
from dra_driver.bench.strategies import Strategy

# Two-sided 95 % quantiles of Student's t, for 1 degree of freedom and more.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_T_OF_MANY = 1.98
"""For 100 degrees of freedom; used from 31 on, where it is at most 3 % too small."""


class Spread(Struct, frozen=True, kw_only=True):
    """A figure of all repetitions, with half of its interval; None for a single one."""

    mean: float
    half: float | None
    values: Sequence[float]

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.mean - (self.half or 0.0)

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.mean + (self.half or 0.0)

    def is_apart_from(self, other: "Spread") -> bool:
        """Whether the intervals do not overlap; a single value has an interval of length 0."""
        return self.low > other.high or other.low > self.high


def spread(values: Iterable[float | None]) -> Spread | None:
    """Return the mean and interval of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    mean = statistics.fmean(known)
    if len(known) == 1:
        return Spread(mean=mean, half=None, values=known)
    freedom = len(known) - 1
    quantile = _T[freedom - 1] if freedom <= len(_T) else _T_OF_MANY
    half = quantile * statistics.stdev(known) / math.sqrt(len(known))
    return Spread(mean=mean, half=half, values=known)


FIGURES: dict[Figure, Callable[[Comparison], float | None]] = {
    "throughput": lambda told: told.total_throughput,
    "least": lambda told: told.least_throughput,
    "p50": lambda told: told.p50,
    "p99": lambda told: told.p99,
    "time": lambda told: told.run_time,
    "isolation": lambda told: told.isolation,
    "fairness": lambda told: told.fairness,
    "memory fairness": lambda told: told.memory_fairness,
}


class Row(Struct, frozen=True, kw_only=True):
    """A strategy, or its tenants of one role, over all repetitions.

    `cases` and `told` are of the same repetitions, in order.
    """

    strategy: Strategy
    role: str | None
    group: str
    cases: Sequence[Case]
    told: Sequence[Comparison]

    @property
    def label(self) -> str:
        """What it is called in a table."""
        return self.strategy.name if self.role is None else f"  of which {self.role}"

    @property
    def number(self) -> int:
        """How many tenants it covers."""
        roles = [self.strategy.role(number) for number in range(self.strategy.tenants)]
        return len(roles) if self.role is None else roles.count(self.role)

    @property
    def is_mixed(self) -> bool:
        """Whether its tenants do different work, so that they have no common figure."""
        return (
            len({part.work for part in self.strategy.parts if self.role in (None, part.role)}) > 1
        )

    def figure(self, figure: Figure) -> Spread | None:
        """Return a ratio over all repetitions."""
        return spread(FIGURES[figure](case) for case in self.told)

    def results(self, case: Case) -> tuple[Result, ...]:
        """Return the results of a case that the row covers."""
        tenants = case.tenants if self.role is None else of_role(case, self.role)
        return tuple(tenant.result for tenant in tenants if tenant.result is not None)

    def over(self, figure: Callable[[Sequence[Result]], float | None]) -> Spread | None:
        """Return an absolute figure over all repetitions."""
        return spread(figure(results) for case in self.cases if (results := self.results(case)))

    @property
    def is_whole(self) -> bool:
        """Whether every tenant has a result in every repetition."""
        return all(tenant.result is not None for case in self.cases for tenant in case.tenants)


def summary(report: Report) -> list[Row]:
    """Return a row for each strategy with results, and after it one for each of several roles."""
    by_name: dict[str, list[Case]] = {}
    for case in report.cases:
        if case.state == "measured":
            by_name.setdefault(case.strategy.name, []).append(case)
    rows = []
    for cases in by_name.values():
        roles = cases[0].strategy.roles
        rows.append(_row(report, cases, None))
        rows += [_row(report, cases, role) for role in (roles if len(roles) > 1 else ())]
    return rows


def _row(report: Report, cases: Sequence[Case], role: str | None) -> Row:
    strategy = cases[0].strategy
    return Row(
        strategy=strategy,
        role=role,
        group=relation_of(report.study, strategy).group,
        cases=cases,
        told=[
            compared(
                case,
                bases(report.cases, case, report.study),
                neighbourless=undisturbed(report.cases, case, report.study),
                role=role,
            )
            for case in cases
        ],
    )
