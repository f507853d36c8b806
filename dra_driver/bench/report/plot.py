"""Draws a report: what each case's tenants got, or a sweep over shares. Only matplotlib.

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
from matplotlib.ticker import FuncFormatter
from msgspec import Struct

from dra_driver.bench.model import Figure as FigureName
from dra_driver.bench.model import Report, Sweep, mean_of
from dra_driver.bench.report.figures import throughput
from dra_driver.bench.report.summary import Row, Spread, summary
from dra_driver.bench.report.view import absolute, unit_of

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
    if report.sweep is None or not report.sweep.steps:
        return _study(report)
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    _sweep(figure.subplots(), report.sweep)
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
    if any(goal.figure == "memory fairness" for goal in report.study.goals):
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
    label = row.strategy.name
    if len(row.strategy.roles) > 1:
        label = f"{label}: {_role(row)}"
    unit = unit_of(row)
    return f"{label}  ({absolute(row.over(throughput), half=False)} {unit}/s)" if unit else label


def _role(row: Row) -> str:
    return row.role or row.strategy.roles[0]


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
    axes.set_title("The worst tenant's 99th percentile of latency")
    axes.set_xlabel("share of the GPU for each tenant, percent")
    axes.set_ylabel("ms, logarithmic")
