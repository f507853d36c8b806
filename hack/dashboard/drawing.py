"""Panels as pictures, in the way of Grafana's, from what Prometheus answered."""

import textwrap
from collections.abc import Callable

from dashboard.board import Panel
from dashboard.charts import heatmap, timeseries
from dashboard.prometheus import Series
from dashboard.svg import COLORS, STYLE, box, shortened, text, value_of
from dashboard.words import legend_of

Answers = list[list[Series]]
"""Series by query."""

WIDTH = 1200
COLUMN = WIDTH / 24
UNIT = 30.0
GAP = 6.0
TITLE = 24.0
LINE = 22.0

Area = tuple[float, float, float, float]
"""Left, top, width, height of what is inside a panel."""


def picture(rows: dict[str, list[tuple[Panel, Answers]]]) -> str:
    """Some rows below each other, as a file."""
    parts, top = [], 0.0
    for title, inside in rows.items():
        parts.append(text(GAP, top + 20, title, "row"))
        begin = min(panel.y for panel, _ in inside)
        for panel, answers in inside:
            parts.append(_panel(panel, answers, top + UNIT - begin * UNIT))
        top += UNIT * (1 + max(panel.y + panel.height for panel, _ in inside) - begin)
    names = " and ".join(f'"{title}"' for title in rows)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {round(top + GAP)}" '
        'role="img" aria-labelledby="title">\n'
        f'  <title id="title">The dashboard: {names.replace(chr(34), "")}</title>\n'
        "  <!-- Drawn by hack/dashboard: change manifests/chart/dashboards, not this file. -->\n"
        f"  <style>\n{STYLE}  </style>\n"
        f"{box(0, 0, WIDTH, top + GAP, '#f3f5f7')}{''.join(parts)}</svg>\n"
    )


def _panel(panel: Panel, answers: Answers, shift: float) -> str:
    left, top = panel.x * COLUMN + GAP / 2, shift + panel.y * UNIT + GAP / 2
    width, height = panel.width * COLUMN - GAP, panel.height * UNIT - GAP
    frame = box(left, top, width, height, kind="panel", rx="3")
    title = text(left + 8, top + 17, shortened(panel.title, width - 16, 7.4), "title")
    area = (left + 8, top + TITLE, width - 16, height - TITLE - 6)
    if not any(answers) and panel.queries:
        inside = text(left + width / 2, top + height / 2, "No data", "empty")
    else:
        inside = _KINDS[panel.kind](panel, answers, area)
    return frame + title + inside


def _stat(panel: Panel, answers: Answers, area: Area) -> str:
    left, top, width, height = area
    value = answers[0][0].values[-1][1]
    words = value_of(round(value, panel.defaults.get("decimals", 2)), panel.unit)
    color = _by_threshold(panel, value)
    place = (left + width / 2, top + height / 2 + 12)
    return text(*place, words, "middle", font_size="34px", font_weight="bold", fill=color)


def _bars(panel: Panel, answers: Answers, area: Area) -> str:
    left, top, width, height = area
    series = sorted(answers[0], key=lambda one: -one.values[-1][1])
    most = panel.defaults.get("max") or max(one.values[-1][1] for one in series)
    names = min(width * 0.3, 200.0)
    room = width - names - 70
    step = min(height / len(series), 32.0)
    parts = []
    for place, one in enumerate(series):
        y, value = top + place * step, one.values[-1][1]
        color = _by_threshold(panel, value)
        name = shortened(legend_of(panel.queries[0].legend, one.labels), names)
        parts += [
            text(left + names - 8, y + step / 2 + 4, name, "end"),
            box(left + names, y + 3, room, step - 6, "#eef1f4"),
            box(left + names, y + 3, room * min(value / most, 1), step - 6, color, opacity="0.8"),
            text(left + names + room + 8, y + step / 2 + 4, value_of(value, panel.unit)),
        ]
    return "".join(parts)


def _table(panel: Panel, answers: Answers, area: Area) -> str:
    left, top, width, height = area
    columns: dict[str, str] = panel.source["transformations"][1]["options"]["renameByName"]
    found: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for place, series in enumerate(answers):
        field = "Value" if len(answers) == 1 else f"Value #{chr(65 + place)}"
        for one in series:
            labels = tuple(sorted(one.labels.items()))
            found.setdefault(labels, {})[field] = one.values[-1][1]
    rows = [dict(labels) | {k: str(v) for k, v in one.items()} for labels, one in found.items()]
    (by,) = panel.source["options"]["sortBy"]
    field = next(key for key, name in columns.items() if name == by["displayName"])
    rows.sort(key=lambda row: _sortable(row.get(field, "")), reverse=by["desc"])
    parts, x = [], left
    wide = {
        key: 3.0 + max(len(name), *(7 if is_value(key) else len(row.get(key, "")) for row in rows))
        for key, name in columns.items()
    }
    for key, name in columns.items():
        step = width * wide[key] / sum(wide.values())
        parts.append(text(x, top + 14, name, font_weight="bold", fill=COLORS["blue"]))
        for place, row in enumerate(rows[: int((height - LINE) / LINE)]):
            y = top + 14 + (place + 1) * LINE
            parts.append(_cell(panel, name, row.get(key, ""), (x, y, step, is_value(key))))
        x += step
    return "".join(parts)


def is_value(column: str) -> bool:
    """Whether a column holds values, not a label."""
    return column.startswith("Value")


def _cell(panel: Panel, name: str, words: str, place: tuple[float, float, float, bool]) -> str:
    x, y, width, value = place
    if value and words:
        words = value_of(float(words), panel.override(name, "unit") or panel.unit)
    color = "#30363d"
    for mapping in panel.override(name, "mappings") or ():
        if words in mapping["options"]:
            color = COLORS[mapping["options"][words]["color"]]
    return text(x, y, shortened(words, width - 6), fill=color)


def _sortable(words: str) -> tuple[float, str]:
    try:
        return float(words), ""
    except ValueError:
        return -1.0, words


def _words(panel: Panel, answers: Answers, area: Area) -> str:
    assert not answers  # noqa: S101 (text asks nothing)
    left, top, width, _ = area
    said = panel.source["options"]["content"].replace("`", "")
    lines = textwrap.wrap(said, int(width / 6.4))
    return "".join(text(left, top + 14 + 16 * place, one) for place, one in enumerate(lines))


def _by_threshold(panel: Panel, value: float) -> str:
    color = ""
    for step in panel.defaults["thresholds"]["steps"]:
        if step["value"] is None or value >= step["value"]:
            color = step["color"]
    return COLORS[color]


_KINDS: dict[str, Callable[[Panel, Answers, Area], str]] = {
    "stat": _stat,
    "bargauge": _bars,
    "table": _table,
    "text": _words,
    "timeseries": timeseries,
    "heatmap": heatmap,
}
