"""A report as rows of text, for the terminal and the page. Pure.

A missing figure is a dash; nothing is invented for it.
"""

import math
from collections.abc import Callable, Sequence

from msgspec import Struct

from dra_driver.admin.output import aligned
from dra_driver.bench.model import Case, Figure, Report, Result, Usage, mean_of
from dra_driver.bench.report.figures import (
    of_role,
    results,
    throughput,
    worst_latency,
)
from dra_driver.bench.report.summary import Row, Spread, spread, summary
from dra_driver.bench.report.verdict import advice
from dra_driver.bench.strategies import Sharing

NONE = "–"  # noqa: RUF001 (a dash)
SIMULATED = (
    "These GPUs are simulated: they did no work, so there are no results. The rest only shows "
    "that claims, pods and processes could be created."
)

READY = "Ready to copy, for"
_LATE_SECONDS = 0.5
_MOST_OF_IT = 0.8
_ENOUGH = 200
"""With fewer latencies, the 99th percentile is one of the two largest."""

_Cell = Callable[[Row], str]


class Column(Struct, frozen=True, kw_only=True):
    """One column of a table: its head, what it means, and its cell."""

    head: str
    means: str
    cell: _Cell


def ratio_of(value: float) -> str:
    """Return a ratio as text."""
    return f"{value:.2f}"


def absolute(value: Spread | None, unit: str = "", *, half: bool = True) -> str:
    """Return a figure with half of its interval, in three digits; a dash for none."""
    if value is None:
        return NONE
    digits = max(0, 2 - math.floor(math.log10(abs(value.mean)))) if value.mean else 0
    digits = min(digits, 3)
    return (_with_half(value, digits) if half else f"{value.mean:.{digits}f}") + unit


def _with_half(value: Spread, digits: int) -> str:
    """Return a figure, and half of its interval unless that rounds to 0."""
    half = f"{value.half or 0.0:.{digits}f}"
    return f"{value.mean:.{digits}f}" + (f" ±{half}" if float(half) else "")


def _ratio(figure: Figure) -> _Cell:
    def cell(row: Row) -> str:
        value = row.figure(figure)
        if value is None:
            return NONE
        return _with_half(value, 2)

    return cell


def unit_of(row: Row) -> str:
    """Return what a row's work is counted in; empty for tenants of different works."""
    units = {result.unit for case in row.cases for result in row.results(case)}
    return units.pop() if len(units) == 1 and not row.is_mixed else ""


def _rate(row: Row) -> str:
    unit = unit_of(row)
    return absolute(row.over(throughput), f" {unit}/s") if unit else NONE


def _latency(name: str) -> _Cell:
    def cell(row: Row) -> str:
        value = row.over(lambda told: worst_latency(told, name))
        return NONE if row.is_mixed else absolute(value)

    return cell


def _fair(row: Row) -> str:
    return NONE if row.is_mixed or row.number == 1 else _ratio("fairness")(row)


def _memory_fair(row: Row) -> str:
    return NONE if row.number == 1 else _ratio("memory fairness")(row)


def _usage(name: str) -> _Cell:
    def cell(row: Row) -> str:
        values = [getattr(case.usage or Usage(), name) for case in row.cases]
        value = spread(values) if row.role is None else None
        return NONE if value is None else _with_half(value, 0)

    return cell


def _by_gpm(name: str) -> _Cell:
    """Return the mean over tenants: each measures its own MIG device, or one the whole GPU."""

    def figure(told: Sequence[Result]) -> float | None:
        return mean_of(getattr(result, name) for result in told)

    def cell(row: Row) -> str:
        has_own = row.strategy.sharing is Sharing.MIG
        value = row.over(figure) if has_own or row.role is None else None
        return NONE if value is None else _with_half(value, 0)

    return cell


def _memory(row: Row) -> str:
    """Return the least and the most, or one of them if they are the same."""
    amounts = [result.memory_mib for case in row.cases for result in row.results(case)]
    known = [mib for mib in amounts if mib is not None]
    if not known:
        return NONE
    low, high = min(known), max(known)
    return f"{low}" if low == high else f"{low} … {high}"


def _refused(row: Row) -> str:
    refused = without = 0
    for case in row.cases:
        refused += sum(result.memory_refused_mib is not None for result in row.results(case))
        tenants = case.tenants if row.role is None else of_role(case, row.role)
        without += sum(tenant.result is None for tenant in tenants)
    if not refused and not without:
        return "none"
    parts = [str(refused) if refused else "", f"{without} failed" if without else ""]
    return f"{' and '.join(filter(None, parts))} of {row.number * len(row.cases)}"


def _slowest(name: str) -> _Cell:
    def figure(told: Sequence[Result]) -> float | None:
        return max((value for result in told if (value := getattr(result, name))), default=None)

    return lambda row: absolute(row.over(figure))


def _energy(row: Row) -> str:
    value = spread(case.energy_per_work for case in row.told) if row.role is None else None
    return absolute(value)


COLUMNS = (
    Column(head="work/s", means="work of all tenants together in a second", cell=_rate),
    Column(
        head="all",
        means="the same as a ratio; 1.00 is what the scenario compares with, usually one alone",
        cell=_ratio("throughput"),
    ),
    Column(
        head="least",
        means="throughput of the slowest tenant, as a ratio: at 0.50 it takes twice as long",
        cell=_ratio("least"),
    ),
    Column(head="p50 ms", means="the largest median latency of a tenant", cell=_latency("p50_ms")),
    Column(head="p99 ms", means="the largest 99th percentile", cell=_latency("p99_ms")),
    Column(head="p50", means="the largest median, as a ratio", cell=_ratio("p50")),
    Column(head="p99", means="the largest 99th percentile, as a ratio", cell=_ratio("p99")),
    Column(
        head="isolation",
        means="99th percentile, or run time, compared with the same share without neighbours: "
        "1.00 is undisturbed",
        cell=_ratio("isolation"),
    ),
    Column(
        head="fair",
        means="Jain's index of the tenants' throughputs: 1.00 if all are equal, 1/n if one has all",
        cell=_fair,
    ),
    Column(
        head="refused",
        means="tenants that got less memory than asked, or no result, out of all rounds",
        cell=_refused,
    ),
)
"""What tenants got. Ratios come with half of their 95 % interval, if there were repetitions."""

COSTS = (
    Column(
        head="SM %",
        means="share of time in which a kernel ran, by NVML",
        cell=_usage("sm_percent"),
    ),
    Column(
        head="mem %",
        means="share of time in which GPU memory was read or written, by NVML",
        cell=_usage("memory_percent"),
    ),
    Column(
        head="busy SMs %",
        means="how many of the SMs were busy, by GPM (cards from Hopper on); of MIG devices the"
        " mean of tenants",
        cell=_by_gpm("busy_sm_percent"),
    ),
    Column(
        head="bandwidth %",
        means="how much of the memory's bandwidth was used, measured likewise",
        cell=_by_gpm("bandwidth_percent"),
    ),
    Column(head="MiB", means="GPU memory that a tenant took for its work", cell=_memory),
    Column(
        head="mem fair",
        means="Jain's index of the memory that tenants had",
        cell=_memory_fair,
    ),
    Column(head="context s", means="time to make a CUDA context", cell=_slowest("context_seconds")),
    Column(
        head="ready s",
        means="time from the start of the process or pod until it is ready",
        cell=_slowest("launch_seconds"),
    ),
    Column(head="energy", means="energy of the card for the same work, as a ratio", cell=_energy),
)
"""What it took."""


def rows(report: Report, columns: Sequence[Column] = COLUMNS) -> list[tuple[str, ...]]:
    """Return the rows of a table, the head first; columns without figures are left out."""
    summarised = summary(report)
    cells = [[column.cell(row) for column in columns] for row in summarised]
    used = [at for at in range(len(columns)) if any(line[at] != NONE for line in cells)]
    table = [("strategy", *(columns[at].head for at in used))]
    whole: list[str] = []
    for row, line in zip(summarised, cells, strict=True):
        if row.role is None:
            whole = line
        # A role that adds nothing to the whole is left out.
        if row.role is None or any(line[at] not in (NONE, whole[at]) for at in used):
            table.append((row.label, *(line[at] for at in used)))
    return table


def remarks(report: Report) -> list[str]:
    """Return a line for each case without results, and for what else a reader has to know."""
    notes = []
    for case in report.cases:
        if case.state == "passed":
            seen = f" ({'; '.join(case.seen)})" if case.seen else ""
            notes.append(f"{case.strategy.name}: ran, without results{seen}")
        elif case.state != "measured":
            notes.append(f"{case.strategy.name}: {case.state}: {case.reason}")
        notes += [
            f"{case.strategy.name}: tenant {tenant.number}: {tenant.failure}"
            for tenant in case.tenants
            if tenant.failure and case.state == "measured"
        ]
    for case in report.cases:
        notes += _doubts(case)
    if report.interrupted:
        notes.append("the run was interrupted: missing cases were not run")
    if any(map(_is_without_utilisation, report.cases)):
        notes.append(
            "SM % and mem % are not available for MIG devices: NVML does not report them for a"
            " GPU in MIG mode. Instead, GPM reports busy SMs and bandwidth of bench's own work on"
            " Hopper and newer; DCGM does for others (DCGM_FI_PROF_SM_ACTIVE,"
            " DCGM_FI_PROF_DRAM_ACTIVE)"
        )
    has_ratios = any(each.total_throughput for row in summary(report) for each in row.told)
    has_bases = any(relation.against for relation in report.study.relations)
    if report.cases and has_bases and not has_ratios and not report.card.is_simulated:
        notes.append("there is no result of the work alone, so there are no ratios")
    return list(dict.fromkeys(notes))


def _is_without_utilisation(case: Case) -> bool:
    usage = case.usage or Usage()
    is_told = any(result.busy_sm_percent is not None for result in results(case))
    is_mig = case.strategy.sharing is Sharing.MIG and case.state == "measured"
    return is_mig and usage.sm_percent is None and not is_told


def _doubts(case: Case) -> list[str]:
    """Return what makes the figures of a case less reliable."""
    doubts = _early_commands(case)
    late = [result.late_seconds for result in results(case)]
    if late and max(late) - min(late) > _LATE_SECONDS:
        doubts.append(
            f"{case.strategy.name}: a tenant began {max(late) - min(late):.1f} s after the others:"
            " use longer --seconds, or a longer `warm_up`"
        )
    counts = [
        result.latency.count
        for result in results(case)
        if result.latency is not None and result.latency.count is not None
    ]
    if counts and min(counts) < _ENOUGH:
        doubts.append(
            f"{case.strategy.name}: a tenant has {min(counts)} latencies, and with fewer than "
            f"{_ENOUGH} the 99th percentile is hardly more than the largest: use longer --seconds"
        )
    return doubts


def _early_commands(case: Case) -> list[str]:
    """Return which commands ended long before the other tenants, which work all of the time."""
    parts = case.strategy.parts
    if all(part.is_command for part in parts):
        return []
    return [
        f"{case.strategy.name}: the command of tenant {tenant.number} ended after"
        f" {tenant.result.seconds:.3g} s, and the others worked on without it: choose --seconds"
        " close to the time that it takes"
        for tenant in case.tenants
        if (part := parts[tenant.number]).is_command
        and tenant.result
        and tenant.result.seconds < _MOST_OF_IT * part.work.seconds
    ]


def facts(report: Report) -> list[tuple[str, str]]:
    """Return what was measured, and on what, as names and values."""
    card = report.card
    clocks = [
        f"SM {card.sm_clock_mhz} of {card.most_sm_clock_mhz} MHz" if card.sm_clock_mhz else "",
        f"memory {card.memory_clock_mhz} MHz" if card.memory_clock_mhz else "",
        f"power limit {card.power_limit_watts:g} W" if card.power_limit_watts else "",
    ]
    rounds = 1 + max((case.repetition for case in report.cases), default=0)
    parts = [part for case in report.cases for part in case.strategy.parts]
    works = dict.fromkeys(f"{part.role}: {part.work.described()}" for part in parts)
    return [
        ("scenario", report.study.name),
        ("question", report.study.answers),
        *(("work", each) for each in works),
        ("rounds", str(rounds)),
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
    told = advice(report)
    if told.sentence:
        lines += ["", told.sentence]
    for columns in (COLUMNS, COSTS):
        table = rows(report, columns)
        if len(table) > 1:
            lines += ["", *aligned(table)]
    if said := remarks(report):
        lines += ["", *said]
    if sweep := report.sweep:
        lines += ["", f"the smallest share with at most {sweep.goal_ms:g} ms:"]
        lines += [
            f"  {step.share_percent:g} %: {step.strategy.name}:"
            f" {NONE if step.worst_ms is None else f'{step.worst_ms:.3g} ms'},"
            f" {'holds' if step.holds else 'does not hold'}"
            for step in sweep.steps
        ]
        lines += [sweep.note] if sweep.note else []
        for text in (sweep.claim, sweep.share_config):
            lines += ["---", text.rstrip()] if text else []
    elif told.strategy is not None:
        lines += ["", f"{READY} {told.strategy.name}:"]
        for text in (told.claim, told.share_config):
            lines += ["---", text.rstrip()] if text else []
    return "\n".join(lines) + "\n"
