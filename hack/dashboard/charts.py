"""Values over time: lines, areas, bars, and a heatmap."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from dashboard.board import Panel
from dashboard.history import BEGIN, END, HOURS
from dashboard.prometheus import Series
from dashboard.svg import COLORS, PALETTE, box, line, path, shortened, text, value_of
from dashboard.words import legend_of

Point = tuple[float, float]
Area = tuple[float, float, float, float]

LEGEND = 18.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A series with a name and a colour. `points` are times and values."""

    name: str
    color: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """From times and values to places."""

    x: Callable[[float], float]
    y: Callable[[float], float]
    floor: float


def timeseries(panel: Panel, answers: list[list[Series]], area: Area) -> str:
    """Curves with axes and a legend."""
    curves = list(_curves(panel, answers))
    left, top, width, height = area
    legend, height_of_legend = _legend(curves, area)
    custom = panel.custom
    stacked = custom["stacking"]["mode"] == "normal"
    is_log = custom["scaleDistribution"]["type"] == "log"
    lifted = _stacked(curves) if stacked else [(curve, {}) for curve in curves]
    values = [value + below.get(at, 0.0) for curve, below in lifted for at, value in curve.points]
    inner = (left + 56, top + 4, width - 62, height - height_of_legend - 22)
    size = float(1 << 30) if panel.unit == "bytes" else 1.0
    scale = _log(values) if is_log else _linear(values, panel.defaults.get("max"), size)
    axes = _axes(inner, scale)
    parts = [_grid(panel.unit, scale, axes, inner), legend]
    for curve, below in lifted:
        if custom["drawStyle"] == "bars":
            parts += _bars(curve, axes, panel.step)
            continue
        hold = panel.step if custom["lineInterpolation"] == "stepAfter" else 0.0
        for points in _pieces(curve.points, panel.step):
            upper = list(_way(points, below, axes, hold))
            if stacked:
                lower = list(_way([(at, 0.0) for at, _ in points], below, axes, hold))
                parts.append(path(upper + lower[::-1], color=curve.color, fill=0.3))
            parts.append(path(upper, color=curve.color))
    return "".join(parts)


def _way(
    points: list[Point], below: dict[float, float], axes: Axes, hold: float
) -> Iterator[Point]:
    """Places of points, on top of what is below; with `hold`, each lasts for so long."""
    for at, value in points:
        y = axes.y(value + below.get(at, 0.0))
        yield axes.x(at), y
        if hold:
            yield axes.x(min(at + hold, END)), y


def heatmap(panel: Panel, answers: list[list[Series]], area: Area) -> str:
    """Cells by time and bucket: the darker, the more."""
    bounds = sorted(answers[0], key=lambda one: float(one.labels["le"]))
    below: dict[float, float] = {}
    cells: list[tuple[int, float, float]] = []
    for row, one in enumerate(bounds):
        for at, value in one.values:
            if value - below.get(at, 0.0) > 0.01:
                cells.append((row, at, value - below.get(at, 0.0)))
            below[at] = value
    left, top, width, height = area
    low = min(row for row, _, _ in cells)
    high = max(row for row, _, _ in cells)
    most = max(value for _, _, value in cells)
    inner = (left + 56, top + 4, width - 62, height - 22)
    step, span = inner[3] / (high - low + 1), inner[2] * panel.step / (END - BEGIN)
    parts = list(_hours(inner))
    for row in range(low, high + 1):
        words = value_of(float(bounds[row].labels["le"]), panel.unit)
        y = inner[1] + (high - row) * step
        parts.append(text(inner[0] - 6, y + 4, words, "axis end"))
    for row, at, value in cells:
        x = inner[0] + (at - BEGIN) / (END - BEGIN) * inner[2]
        y = inner[1] + (high - row) * step
        opacity = f"{0.15 + 0.85 * math.sqrt(value / most):.2f}"
        parts.append(box(x - span, y, span, step - 1, "#d9540a", opacity=opacity))
    return "".join(parts)


def _curves(panel: Panel, answers: list[list[Series]]) -> Iterator[Curve]:
    number = 0
    for query, series in zip(panel.queries, answers, strict=True):
        for one in series:
            name = legend_of(query.legend, one.labels)
            fixed = panel.override(name, "color")
            color = COLORS[fixed["fixedColor"]] if fixed else PALETTE[number % len(PALETTE)]
            number += 1
            yield Curve(name=name, color=color, points=one.values)


def _stacked(curves: list[Curve]) -> list[tuple[Curve, dict[float, float]]]:
    """Each curve with what lies below it at each time."""
    total: dict[float, float] = {}
    found = []
    for curve in curves:
        found.append((curve, dict(total)))
        for at, value in curve.points:
            total[at] = total.get(at, 0.0) + value
    return found


def _legend(curves: list[Curve], area: Area) -> tuple[str, float]:
    left, top, width, height = area
    entries = [(curve, min(24 + 6.6 * len(curve.name), 240.0)) for curve in curves]
    lines: list[list[tuple[Curve, float, float]]] = [[]]
    x = 0.0
    for curve, wide in entries:
        if x + wide > width and lines[-1]:
            lines.append([])
            x = 0.0
        lines[-1].append((curve, x, wide))
        x += wide
    parts = []
    for place, entry in enumerate(lines):
        y = top + height - (len(lines) - 1 - place) * LEGEND
        for curve, x, wide in entry:
            parts.append(box(left + x, y - 8, 12, 4, curve.color))
            parts.append(text(left + x + 16, y - 2, shortened(curve.name, wide - 18)))
    return "".join(parts), LEGEND * len(lines)


def _linear(values: list[float], most: float | None, unit: float) -> list[float]:
    """Ticks from zero, round in a unit."""
    top = (most or max([*values, 0.0]) or 1.0) / unit
    raw = top / 4
    size = 10 ** math.floor(math.log10(raw))
    step = next(one * size for one in (1, 2, 2.5, 5, 10) if one * size >= raw * 0.999)
    if top > 1 and top == int(top) and top <= 4:
        step = 1.0
    count = 1 if most and step > most else math.ceil(top / step - 1e-9)
    return [unit * step * number for number in range(count + 1)]


def _log(values: list[float]) -> list[float]:
    """Ticks at powers of ten and halfway."""
    seen = [value for value in values if value > 0 and math.isfinite(value)]
    low, high = math.floor(math.log10(min(seen))), math.ceil(math.log10(max(seen)))
    return [10.0**power for power in range(low, high + 1)]


def _axes(inner: Area, ticks: list[float]) -> Axes:
    left, top, width, height = inner

    def y(value: float) -> float:
        if ticks[0] == 0:
            part = value / ticks[-1]
        else:
            span = math.log10(ticks[-1] / ticks[0])
            part = math.log10(max(value, ticks[0]) / ticks[0]) / span
        return top + height * (1 - part)

    def x(at: float) -> float:
        return left + (at - BEGIN) / (END - BEGIN) * width

    return Axes(x=x, y=y, floor=top + height)


def _grid(unit: str, ticks: list[float], axes: Axes, inner: Area) -> str:
    left, _, width, _ = inner
    parts = list(_hours(inner))
    for tick in ticks:
        y = axes.y(tick)
        parts.append(line(left, y, left + width, y))
        parts.append(text(left - 6, y + 3.5, value_of(tick, unit), "axis end"))
    return "".join(parts)


def _hours(inner: Area) -> Iterator[str]:
    left, top, width, height = inner
    for hour in range(0, HOURS + 1, 1 if width > 260 else 2):
        x = left + hour / HOURS * width
        words = datetime.fromtimestamp(BEGIN + hour * 3600, UTC).strftime("%H:%M")
        yield line(x, top, x, top + height)
        kind = "axis end" if hour == HOURS else "axis middle"
        yield text(x, top + height + 14, words, kind)


def _bars(curve: Curve, axes: Axes, step: float) -> Iterator[str]:
    for at, value in curve.points:
        x, y = axes.x(at - step), axes.y(value)
        yield box(x, y, axes.x(at) - x - 1, axes.floor - y, curve.color, opacity="0.8")


def _pieces(points: tuple[Point, ...], step: float) -> Iterator[list[Point]]:
    """Points without gaps between them."""
    piece: list[Point] = []
    for point in points:
        if not math.isfinite(point[1]) or (piece and point[0] - piece[-1][0] > 1.5 * step):
            if piece:
                yield piece
            piece = []
        if math.isfinite(point[1]):
            piece.append(point)
    if piece:
        yield piece
