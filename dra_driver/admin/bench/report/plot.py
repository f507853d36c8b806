"""Draws a report: curves over the number of tenants, what each got, a sweep. matplotlib alone.

In: a report with results. Out: one picture as SVG text or PNG bytes. Colours are told apart by
colour-blind people too, and every line has a mark of its own. Text stays text in the SVG, in the
fonts that the reader has.
"""

import io
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dra_driver.admin.bench.model import Case, Report, Sweep
from dra_driver.admin.bench.report.figures import Comparison, alone, compared
from dra_driver.admin.bench.strategies import Sharing
from dra_driver.dataclass import dataclass

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
    Sharing.TIME_SLICING: "time-slicing",
    Sharing.MPS: "MPS",
    Sharing.MPS_LIMITS: "MPS with limits",
    Sharing.SHARES: "shares",
    Sharing.MIG: "MIG",
    Sharing.MIG_TIME_SLICING: "MIG, time-slicing",
    Sharing.MIG_MPS: "MIG, MPS",
}
_FIGURE = Callable[[Comparison], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    title: str
    unit: str
    figure: _FIGURE
    equal: Callable[[int], float]
    """Where a GPU would be that its tenants divide without loss or gain."""


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
    measure = alone(report.cases)
    told = [(case, compared(case, measure)) for case in report.cases if case.state == "measured"]
    has_sweep = report.sweep is not None and bool(report.sweep.steps)
    figure = Figure(figsize=(12, 12.6 if has_sweep else 8.4), layout="constrained")
    axes = figure.subplots(3 if has_sweep else 2, 2, squeeze=False)
    has_latency = any(one.p99 is not None for _, one in told)
    _curves(axes[0][0], told, _THROUGHPUT)
    _curves(axes[0][1], told, _P99 if has_latency else _TIME)
    _bars(axes[1][0], told)
    _busy(axes[1][1], told)
    if report.sweep is not None and has_sweep:
        grid = axes[2][0].get_gridspec()
        for one in axes[2]:
            one.remove()
        _sweep(figure.add_subplot(grid[2, :]), report.sweep)
    handles, labels = axes[0][0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper center", ncols=6, frameon=False)
    return figure


_THROUGHPUT = _Panel(
    title="Throughput of all tenants together",
    unit="times one tenant alone",
    figure=lambda told: told.total_throughput,
    equal=lambda _: 1.0,
)
_P99 = _Panel(
    title="Slowest tenant's 99th percentile of latency",
    unit="times alone, logarithmic",
    figure=lambda told: told.p99,
    equal=float,
)
_TIME = _Panel(
    title="Time of the slowest tenant for the same work",
    unit="times alone, logarithmic",
    figure=lambda told: told.run_time,
    equal=float,
)


def _curves(axes: Axes, told: list[tuple[Case, Comparison]], panel: _Panel) -> None:
    lines: dict[tuple[Sharing, str], list[tuple[int, float]]] = {}
    for case, one in told:
        value = panel.figure(one)
        if value is not None:
            key = (case.strategy.sharing, case.strategy.profile)
            lines.setdefault(key, []).append((case.strategy.tenants, value))
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
        points.sort()
        axes.plot(
            [tenants for tenants, _ in points],
            [value for _, value in points],
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


def _bars(axes: Axes, told: list[tuple[Case, Comparison]]) -> None:
    """Draw what each tenant got: the more alike the parts of a bar, the fairer."""
    base = next((one for one, _ in told if one.strategy.sharing is Sharing.ALONE), None)
    unit = None if base is None else base.tenants[0].result
    labels = []
    for row, (case, _) in enumerate(told):
        colour, _mark = _LOOK[case.strategy.sharing]
        left = 0.0
        for tenant in case.tenants:
            got = tenant.result.throughput if tenant.result else 0.0
            width = got / unit.throughput if unit and unit.throughput else got
            axes.barh(row, width, left=left, color=colour, edgecolor="white", linewidth=1.2)
            left += width
        labels.append(case.strategy.label)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_title("What each tenant got")
    axes.set_xlabel("throughput, times one tenant alone; a part for each tenant")


def _busy(axes: Axes, told: list[tuple[Case, Comparison]]) -> None:
    known = [(case, case.usage) for case, _ in told if case.usage and case.usage.samples]
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
            f"smallest that holds: {chosen.share_percent:g} %",
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
