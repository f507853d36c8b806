"""Draws a report: curves over the number of tenants, what each got, a sweep. Only matplotlib.

In: a report with results. Out: one picture as SVG text or PNG bytes. Colour-blind people can
distinguish the colours, and every line has its own marker. Text stays text in the SVG, in the
reader's fonts.
"""

import io
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator
from msgspec import Struct

from dra_driver.bench.model import Figure as FigureName
from dra_driver.bench.model import Report, Sweep, mean_of
from dra_driver.bench.report.figures import throughput
from dra_driver.bench.report.spread import Spread
from dra_driver.bench.report.summary import Row, summary
from dra_driver.bench.report.view import absolute, unit_of
from dra_driver.bench.strategies import Sharing

_STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Arial", "Helvetica"],
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "svg.fonttype": "none",
    "svg.hashsalt": "dra-driver",
}
_LOOK = {
    Sharing.ALONE: ("#333333", "o"),
    Sharing.WHOLE_GPUS: ("#999999", "h"),
    Sharing.TIME_SLICING: ("#0072b2", "s"),
    Sharing.MPS: ("#e69f00", "^"),
    Sharing.MPS_LIMITS: ("#d55e00", "D"),
    Sharing.SHARES: ("#56b4e9", "v"),
    Sharing.MIG: ("#009e73", "P"),
    Sharing.MIG_TIME_SLICING: ("#7570b3", "X"),
    Sharing.MIG_MPS: ("#cc79a7", "*"),
}
_NAMES = {
    Sharing.ALONE: "alone",
    Sharing.WHOLE_GPUS: "whole GPUs",
    Sharing.TIME_SLICING: "time-slicing",
    Sharing.MPS: "MPS",
    Sharing.MPS_LIMITS: "MPS with limits",
    Sharing.SHARES: "shares",
    Sharing.MIG: "MIG",
    Sharing.MIG_TIME_SLICING: "MIG, time-slicing",
    Sharing.MIG_MPS: "MIG, MPS",
}


class _Panel(Struct, frozen=True, kw_only=True):
    title: str
    unit: str
    figure: FigureName
    equal: Callable[[int], float]
    """The line of a GPU whose tenants divide it without loss or gain."""


def svg(report: Report) -> str:
    """Return the picture as an `svg` element."""
    buffer = io.StringIO()
    with mpl.rc_context(_STYLE):
        _drawn(report).savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def png(report: Report) -> bytes:
    """Return the picture as a PNG file."""
    buffer = io.BytesIO()
    with mpl.rc_context(_STYLE):
        _drawn(report).savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _drawn(report: Report) -> Figure:
    rows = [row for row in summary(report) if row.role is None]
    if report.study is not None:
        return _study(report)
    has_sweep = report.sweep is not None and bool(report.sweep.steps)
    figure = Figure(figsize=(12, 12.6 if has_sweep else 8.4), layout="constrained")
    axes = figure.subplots(3 if has_sweep else 2, 2, squeeze=False)
    has_latency = any(row.figure("p99") for row in rows)
    _curves(axes[0][0], rows, _THROUGHPUT)
    _curves(axes[0][1], rows, _P99 if has_latency else _TIME)
    _bars(axes[1][0], rows)
    _busy(axes[1][1], rows)
    if report.sweep is not None and has_sweep:
        grid = axes[2][0].get_gridspec()
        for axis in axes[2]:
            axis.remove()
        _sweep(figure.add_subplot(grid[2, :]), report.sweep)
    handles, labels = axes[0][0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper center", ncols=6, frameon=False)
    return figure


_ROLES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9")


class _Bars(Struct, frozen=True, kw_only=True):
    """One panel of a scenario: a bar for each row that has the figure."""

    title: str
    unit: str
    figure: Callable[[Row], Spread | None]
    is_ratio: bool = True


def _ratio(figure: FigureName, title: str, against: str = "the reference case") -> _Bars:
    return _Bars(title=title, unit=f"ratio to {against}", figure=lambda row: row.figure(figure))


_LATENCY = _ratio("p99", "99th percentile of latency")
_RUN_TIME = _ratio("time", "Run time")
_RATIOS = (
    _ratio("throughput", "Throughput"),
    _LATENCY,
    _RUN_TIME,
    _ratio("isolation", "Isolation", "no neighbours"),
)
_MEMORY = _Bars(
    title="Memory of a tenant",
    unit="GiB, the mean",
    figure=lambda row: row.over(
        lambda told: mean_of(result.memory_mib and result.memory_mib / 1024 for result in told)
    ),
    is_ratio=False,
)


def _panels(report: Report, rows: Sequence[Row]) -> list[_Bars]:
    """Return what is drawn of a scenario: ratios, and memory if that is the question.

    A scenario that compares nothing has a panel for each unit of work.
    """
    panels = [panel for panel in _RATIOS if any(map(panel.figure, rows))]
    if not panels:
        return [_absolute(unit) for unit in dict.fromkeys(map(unit_of, rows)) if unit]
    if _LATENCY in panels:
        panels = [panel for panel in panels if panel is not _RUN_TIME]
    goals = report.study.goals if report.study is not None else ()
    if any(goal.figure == "memory fairness" for goal in goals):
        panels = [panels[0], _MEMORY]
    return panels


def _absolute(unit: str) -> _Bars:
    return _Bars(
        title="Throughput",
        unit=f"{unit}/s",
        figure=lambda row: row.over(throughput) if unit_of(row) == unit else None,
        is_ratio=False,
    )


def _study(report: Report) -> Figure:
    """Draw a scenario: bars of each role in each case, with the 95 % interval of repetitions."""
    rows = [row for row in summary(report) if row.role or len(row.strategy.roles) == 1]
    panels = _panels(report, rows)
    drawn = {row.strategy.name for row in rows if any(each.figure(row) for each in panels)}
    # Each case has a bar, or at least a text beside its name.
    rows = [
        row
        for row in rows
        if row.strategy.name not in drawn or any(each.figure(row) for each in panels)
    ]
    figure = Figure(figsize=(12, 1.4 + 0.34 * max(2, len(rows))), layout="constrained")
    axes = figure.subplots(1, max(1, len(panels)), squeeze=False, sharey=True)[0]
    roles = list(dict.fromkeys(_role(row) for row in rows))
    colours = {role: _ROLES[at % len(_ROLES)] for at, role in enumerate(roles)}
    for axis, panel in zip(axes, panels, strict=False):
        _panel(axis, panel, rows, [colours[_role(row)] for row in rows])
    axes[0].set_yticks(range(len(rows)), list(map(_named, rows)), fontsize=8)
    axes[0].set_ylim(len(rows) - 0.4, -0.6)
    handles = [Patch(color=colours[role]) for role in roles]
    figure.legend(handles, roles, loc="outside upper center", ncols=6, frameon=False)
    return figure


def _panel(axes: Axes, panel: _Bars, rows: Sequence[Row], colours: Sequence[str]) -> None:
    values = [panel.figure(row) for row in rows]
    for line, (value, colour) in enumerate(zip(values, colours, strict=True)):
        if value is not None:
            axes.barh(line, value.mean, color=colour, xerr=value.half, capsize=3, height=0.7)
    axes.set_title(panel.title)
    axes.set_xlabel(panel.unit)
    axes.grid(visible=False, axis="y")
    if not panel.is_ratio:
        return
    axes.axvline(1.0, color="#555555", linestyle="--", linewidth=1)
    known = [value.mean for value in values if value is not None and value.mean > 0]
    if known and max(known) > 20 * min(known):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _named(row: Row) -> str:
    """Return what a row is called, with its absolute throughput."""
    label = row.strategy.label
    if len(row.strategy.roles) > 1:
        label = f"{label}: {_role(row)}"
    unit = unit_of(row)
    return f"{label}  ({absolute(row.over(throughput), half=False)} {unit}/s)" if unit else label


def _role(row: Row) -> str:
    return row.role or row.strategy.roles[0]


_THROUGHPUT = _Panel(
    title="Throughput of all tenants together",
    unit="times one tenant alone",
    figure="throughput",
    equal=lambda _: 1.0,
)
_P99 = _Panel(
    title="Slowest tenant's 99th percentile of latency",
    unit="times alone, logarithmic",
    figure="p99",
    equal=float,
)
_TIME = _Panel(
    title="Time of the slowest tenant for the same work",
    unit="times alone, logarithmic",
    figure="time",
    equal=float,
)


def _curves(axes: Axes, rows: Sequence[Row], panel: _Panel) -> None:
    lines: dict[tuple[Sharing, str], list[tuple[int, Spread]]] = {}
    for row in rows:
        value = row.figure(panel.figure)
        if value is not None:
            key = (row.strategy.sharing, row.strategy.profile)
            lines.setdefault(key, []).append((row.strategy.tenants, value))
    most = max((tenants for line in lines.values() for tenants, _ in line), default=1)
    counts = list(range(1, most + 1))
    axes.plot(
        counts,
        [panel.equal(count) for count in counts],
        color="#aaaaaa",
        linestyle="--",
        linewidth=1,
        label="divided without loss",
    )
    for (sharing, profile), points in lines.items():
        colour, mark = _LOOK[sharing]
        points.sort(key=lambda point: point[0])
        axes.errorbar(
            [tenants for tenants, _ in points],
            [value.mean for _, value in points],
            yerr=[value.half or 0.0 for _, value in points],
            capsize=3,
            color=colour,
            marker=mark,
            markersize=7,
            linewidth=2,
            label=" ".join(filter(None, (_NAMES[sharing], profile))),
        )
    axes.set_title(panel.title)
    axes.set_xlabel("tenants at the same time")
    axes.set_ylabel(panel.unit)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if "logarithmic" in panel.unit:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_ylim(bottom=0)


def _bars(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw what each tenant got: the more alike the parts of a bar, the fairer."""
    base = next((row for row in rows if row.strategy.sharing is Sharing.ALONE), None)
    unit = None if base is None else base.over(lambda told: told[0].throughput)
    for line, row in enumerate(rows):
        colour, _mark = _LOOK[row.strategy.sharing]
        left = 0.0
        for number in range(row.strategy.tenants):
            got = [case.tenants[number].result for case in row.cases]
            width = sum(result.throughput for result in got if result) / len(got)
            width = width / unit.mean if unit and unit.mean else width
            axes.barh(line, width, left=left, color=colour, edgecolor="white", linewidth=1.2)
            left += width
    labels = [row.strategy.label for row in rows]
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_title("What each tenant got")
    axes.set_xlabel("throughput, times one tenant alone; a part for each tenant")


def _busy(axes: Axes, rows: Sequence[Row]) -> None:
    firsts = [row.cases[0] for row in rows]
    known = [
        (case, case.usage) for case in firsts if case.usage and case.usage.sm_percent is not None
    ]
    for row, (_, usage) in enumerate(known):
        for shift, value, colour, name in (
            (-0.2, usage.sm_percent, "#4c4c4c", "a kernel runs"),
            (0.2, usage.memory_percent, "#b0b0b0", "memory is read or written"),
        ):
            label = name if row == 0 else "_"
            axes.barh(row + shift, value or 0, height=0.38, color=colour, label=label)
    axes.set_yticks(range(len(known)), [case.strategy.label for case, _ in known], fontsize=8)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 100)
    axes.set_title("How busy the GPU was")
    axes.set_xlabel("percent of the time, by NVML")
    if known:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False)
    else:
        axes.text(50, 0, "NVML does not say", ha="center", va="center", color="#888888")


def _sweep(axes: Axes, sweep: Sweep) -> None:
    known = [(step.share_percent, step.worst_ms) for step in sweep.steps if step.worst_ms]
    axes.plot(
        [share for share, _ in known],
        [worst for _, worst in known],
        color="#555555",
        linewidth=1.5,
        zorder=1,
    )
    for step in sweep.steps:
        if step.worst_ms:
            colour = "#009e73" if step.holds else "#d55e00"
            mark = "o" if step.holds else "x"
            axes.scatter([step.share_percent], [step.worst_ms], color=colour, marker=mark, s=60)
    axes.axhline(sweep.goal_ms, color="#0072b2", linestyle="--", linewidth=1.5)
    axes.text(
        1.0, sweep.goal_ms, f"goal {sweep.goal_ms:g} ms ", color="#0072b2", ha="right", va="bottom",
        transform=axes.get_yaxis_transform(),
    )  # fmt: skip
    chosen = next((step for step in sweep.steps if step.strategy == sweep.chosen), None)
    if chosen is not None and chosen.worst_ms is not None:
        axes.annotate(
            f"smallest that meets it: {chosen.share_percent:g} %",
            (chosen.share_percent, chosen.worst_ms),
            xytext=(18, 62),
            textcoords="offset points",
            arrowprops={"arrowstyle": "->", "color": "#555555"},
        )
    axes.set_yscale("log")
    axes.margins(y=0.15)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_title(f"Sweep over {sweep.over}: worst tenant's latency")
    axes.set_xlabel("share of the GPU for each tenant, percent")
    axes.set_ylabel("ms, logarithmic")
