"""A report as rows of text, for the terminal and the page. Pure.

A figure that is not there is a dash; nothing is made up for it.
"""

from collections.abc import Callable, Sequence

from dra_driver.admin.bench.model import Case, Report, Usage
from dra_driver.admin.bench.report.figures import (
    Comparison,
    alone,
    compared,
    in_containers,
    results,
)
from dra_driver.admin.table import aligned
from dra_driver.dataclass import dataclass

NONE = "–"  # noqa: RUF001 (a dash)
SIMULATED = (
    "These GPUs are simulated: no work was done on them, so there are no results. What is said"
    " below is that claims, pods and processes could be made."
)

IN_CONTAINERS = "Containers of pods against bare processes, as ratios"
_LATE_SECONDS = 0.5
_ENOUGH = 200
"""Latencies: the 99th percentile is the second largest of so many, or what follows it."""

_Cell = Callable[[Case, Comparison], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of the table: its head, what it means, and its cell."""

    head: str
    means: str
    cell: _Cell


def _ratio(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _span(values: Sequence[float], form: str) -> str:
    """Return the least and the most, or one of them if they look the same."""
    if not values:
        return NONE
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} … {high}"


def _latency(name: str) -> _Cell:
    def cell(case: Case, _: Comparison) -> str:
        found = [getattr(one.latency, name) for one in results(case) if one.latency is not None]
        return _span(found, "{:.3g}")

    return cell


def _usage(name: str, form: str) -> _Cell:
    def cell(case: Case, _: Comparison) -> str:
        value = getattr(case.usage or Usage(), name)
        return NONE if value is None else form.format(value)

    return cell


def _memory(case: Case, _: Comparison) -> str:
    return _span([one.memory_mib for one in results(case) if one.memory_mib is not None], "{:.0f}")


def _refused(case: Case, _: Comparison) -> str:
    refused = sum(one.memory_refused_mib is not None for one in results(case))
    without = sum(one.result is None for one in case.tenants)
    if not refused and not without:
        return "none"
    parts = [f"{refused} tenants" if refused else "", f"{without} failed" if without else ""]
    return ", ".join(filter(None, parts))


def _context(case: Case, _: Comparison) -> str:
    return _span([one.context_seconds for one in results(case) if one.context_seconds], "{:.2f}")


def _launch(case: Case, _: Comparison) -> str:
    return _span([one.launch_seconds for one in results(case) if one.launch_seconds], "{:.1f}")


COLUMNS = (
    Column(
        head="all",
        means="throughput of all tenants together; 1.00 is one tenant alone on the whole GPU",
        cell=lambda _, told: _ratio(told.total_throughput),
    ),
    Column(
        head="least",
        means="throughput of the tenant that got least, likewise",
        cell=lambda _, told: _ratio(told.least_throughput),
    ),
    Column(
        head="time",
        means="how much longer the slowest tenant takes for the same amount of work",
        cell=lambda _, told: _ratio(told.run_time),
    ),
    Column(head="p50", means="ratio of the largest median", cell=lambda _, t: _ratio(t.p50)),
    Column(head="p99", means="ratio of the largest 99th", cell=lambda _, t: _ratio(t.p99)),
    Column(head="p50 ms", means="median, of all tenants", cell=_latency("p50_ms")),
    Column(head="p99 ms", means="99th percentile, of all tenants", cell=_latency("p99_ms")),
    Column(
        head="fair",
        means="Jain's index of the tenants' throughputs: 1.00 all alike, 1/n one has all",
        cell=lambda _, told: _ratio(told.fairness),
    ),
    Column(
        head="mem fair",
        means="the same of the memory that they had",
        cell=lambda _, told: _ratio(told.memory_fairness),
    ),
    Column(
        head="SM %",
        means="share of time in which a kernel ran, by NVML",
        cell=_usage("sm_percent", "{:.0f}"),
    ),
    Column(
        head="mem %",
        means="share of time in which GPU memory was read or written, by NVML",
        cell=_usage("memory_percent", "{:.0f}"),
    ),
    Column(head="MiB", means="GPU memory that a tenant took for its work", cell=_memory),
    Column(head="refused", means="tenants that got less memory, or no result", cell=_refused),
    Column(head="context s", means="the making of a CUDA context", cell=_context),
    Column(head="ready s", means="from the start of process or pod until ready", cell=_launch),
    Column(
        head="energy",
        means="energy of the card for the same work, as ratio",
        cell=lambda _, told: _ratio(told.energy_per_work),
    ),
)


def rows(report: Report) -> list[tuple[str, ...]]:
    """Return the rows of the table, the head first; cases without results are left out."""
    measure = alone(report.cases)
    found = [("strategy", *(column.head for column in COLUMNS))]
    for case in report.cases:
        if case.state == "measured":
            told = compared(case, measure)
            found.append((case.strategy.label, *(column.cell(case, told) for column in COLUMNS)))
    return found


def remarks(report: Report) -> list[str]:
    """Return a line for each case without results, and for what else a reader has to know."""
    found = []
    for case in report.cases:
        if case.state == "passed":
            seen = f" ({'; '.join(case.seen)})" if case.seen else ""
            found.append(f"{case.strategy.label}: ran, without results{seen}")
        elif case.state != "measured":
            found.append(f"{case.strategy.label}: {case.state}: {case.reason}")
        found += [
            f"{case.strategy.label}: tenant {one.number}: {one.failure}"
            for one in case.tenants
            if one.failure and case.state == "measured"
        ]
    for case in report.cases:
        found += _doubts(case)
    if report.interrupted:
        found.append("the run was interrupted: cases that are not here were not run")
    if report.cases and alone(report.cases) is None and not report.card.is_simulated:
        found.append("there is no result of the work alone, so there are no ratios")
    return found


def _doubts(case: Case) -> list[str]:
    """Say what makes the figures of a case worth less."""
    found = []
    late = [one.late_seconds for one in results(case)]
    if late and max(late) - min(late) > _LATE_SECONDS:
        found.append(
            f"{case.strategy.label}: a tenant began {max(late) - min(late):.1f} s after the others:"
            " work for longer (--seconds), or warm up for longer (--warm-up)"
        )
    counts = [
        one.latency.count
        for one in results(case)
        if one.latency is not None and one.latency.count is not None
    ]
    if counts and min(counts) < _ENOUGH:
        found.append(
            f"{case.strategy.label}: a tenant has {min(counts)} latencies, and of fewer than"
            f" {_ENOUGH} the 99th percentile is hardly more than the largest: work for longer"
        )
    return found


def pairs(reports: Sequence[Report]) -> list[tuple[Report, Report]]:
    """Return each report of pods with each of processes that it can be compared with."""
    return [
        (pods, processes)
        for pods in reports
        for processes in reports
        if (pods.where, processes.where) == ("pods", "processes") and in_containers(pods, processes)
    ]


def container_rows(pods: Report, processes: Report) -> list[tuple[str, ...]]:
    """Return the rows of the table of containers against bare processes, the head first."""
    return [
        ("strategy", "throughput", "p50", "p99", "context", "ready, s more"),
        *(
            (
                one.strategy.label,
                _ratio(one.throughput),
                _ratio(one.p50),
                _ratio(one.p99),
                _ratio(one.context),
                NONE if one.launch_seconds is None else f"{one.launch_seconds:+.1f}",
            )
            for one in in_containers(pods, processes)
        ),
    ]


def containers_as_text(reports: Sequence[Report]) -> str:
    """Return the tables of containers against bare processes for the terminal."""
    return "".join(
        "\n".join(["", f"{IN_CONTAINERS}:", *aligned(container_rows(*pair)), ""])
        for pair in pairs(reports)
    )


def facts(report: Report) -> list[tuple[str, str]]:
    """Return what the figures belong to, as names and values."""
    card = report.card
    clocks = [
        f"SM {card.sm_clock_mhz} of {card.most_sm_clock_mhz} MHz" if card.sm_clock_mhz else "",
        f"memory {card.memory_clock_mhz} MHz" if card.memory_clock_mhz else "",
        f"power limit {card.power_limit_watts:g} W" if card.power_limit_watts else "",
    ]
    return [
        ("work", report.work.described()),
        ("card", card.name + (f", {card.memory_mib} MiB" if card.memory_mib else "")),
        ("driver", card.driver_version),
        ("clocks before the run", ", ".join(filter(None, clocks)) or NONE),
        ("as", "pods with claims" if report.where == "pods" else "processes of this machine"),
        ("made", f"{report.made_at}, dra-driver {report.dra_driver}"),
    ]


def as_text(report: Report) -> str:
    """Return a report for the terminal."""
    lines = [f"{name}: {value}" for name, value in facts(report)]
    if report.card.is_simulated:
        lines += ["", SIMULATED]
    table = rows(report)
    if len(table) > 1:
        lines += ["", *aligned(table)]
    if said := remarks(report):
        lines += ["", *said]
    if sweep := report.sweep:
        lines += ["", f"sweep over {sweep.over}, goal {sweep.goal_ms:g} ms:"]
        lines += [
            f"  {step.share_percent:g} %: {step.strategy.label}:"
            f" {NONE if step.worst_ms is None else f'{step.worst_ms:.3g} ms'},"
            f" {'holds' if step.holds else 'does not hold'}"
            for step in sweep.steps
        ]
        lines += [sweep.note] if sweep.note else []
        for text in (sweep.claim, sweep.share_config):
            lines += ["---", text.rstrip()] if text else []
    return "\n".join(lines) + "\n"
