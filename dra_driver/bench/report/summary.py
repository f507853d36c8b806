"""A report by strategies: all repetitions of one together, and its roles beside it. Pure."""

from collections.abc import Callable, Sequence

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
from dra_driver.bench.report.spread import Spread, spread
from dra_driver.bench.strategies import Strategy

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
        """How many tenants are meant."""
        roles = [self.strategy.role(number) for number in range(self.strategy.tenants)]
        return len(roles) if self.role is None else roles.count(self.role)

    @property
    def is_mixed(self) -> bool:
        """Whether its tenants do different works, so that they have no figure together."""
        return (
            len({part.work for part in self.strategy.parts if self.role in (None, part.role)}) > 1
        )

    def figure(self, figure: Figure) -> Spread | None:
        """Return a ratio over all repetitions."""
        return spread(FIGURES[figure](case) for case in self.told)

    def results(self, case: Case) -> tuple[Result, ...]:
        """Return the results of a case that are meant."""
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
