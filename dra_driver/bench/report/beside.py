"""Reports compared with each other: cards, or containers and bare processes, case by case. Pure.

Only results that all reports have, for the same work, are compared: absolute figures, and the
ratio to the first report.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from dra_driver.admin.output import aligned
from dra_driver.bench.model import Report, Result
from dra_driver.bench.report.figures import throughput, worst_latency
from dra_driver.bench.report.summary import Row, Spread, summary
from dra_driver.bench.report.view import NONE, absolute, ratio_of
from dra_driver.errors import SetupError

TITLE = "The reports compared"


def names_of(paths: Sequence[Path]) -> list[str]:
    """Return the names of reports by their files. Raises SetupError if two have the same."""
    names = [path.stem for path in paths]
    if twice := [name for name in names if names.count(name) > 1]:
        raise SetupError(
            f"two reports are called {twice[0]}, so their figures could not be told apart: rename "
            "a copy of one"
        )
    return names


def beside_rows(reports: Sequence[Report], names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the rows of the table, the head first, for results that all reports have."""
    ratios = [f"{name} / {names[0]}" for name in names[1:]]
    head = ("strategy", *names, *ratios, *(f"p99 ms {name}" for name in names))
    head = (*head, *(f"p99 {ratio}" for ratio in ratios))
    tables = [_by_key(report) for report in reports]
    rows = [head]
    for key in tables[0] if tables else ():
        own = [table[key] for table in tables if key in table]
        if len(own) == len(reports) > 1:
            rates = [row.over(throughput) for row in own]
            waits = [row.over(lambda some: worst_latency(some, "p99_ms")) for row in own]
            unit = own[0].results(own[0].cases[0])[0].unit
            rows.append(
                (
                    own[0].label,
                    *(absolute(rate, f" {unit}/s") for rate in rates),
                    *_ratios(rates),
                    *(absolute(wait) for wait in waits),
                    *_ratios(waits),
                )
            )
    return rows


def beside_as_text(reports: Sequence[Report], names: Sequence[str]) -> str:
    """Return the table for the terminal; nothing for a single report."""
    table = beside_rows(reports, names) if len(names) > 1 else []
    return "\n".join(["", f"{TITLE}:", *aligned(table), ""]) if len(table) > 1 else ""


def _ratios(values: Sequence[Spread | None]) -> list[str]:
    first = values[0]
    return [
        NONE
        if value is None or first is None or not first.mean
        else ratio_of(value.mean / first.mean)
        for value in values[1:]
    ]


def _by_key(report: Report) -> Mapping[tuple[object, ...], Row]:
    """Return rows whose tenants do one work, by what makes them comparable in another report."""
    by_key: dict[tuple[object, ...], Row] = {}
    for row in summary(report):
        parts = (part for part in row.strategy.parts if row.role in (None, part.role))
        works = tuple(part.work for part in parts)
        results: Sequence[Result] = row.results(row.cases[0])
        if len({result.unit for result in results}) == 1:
            by_key[row.strategy.name, row.role, works] = row
    return by_key
