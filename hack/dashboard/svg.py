"""Shapes of SVG, and values as Grafana writes them."""

from html import escape

COLORS = {
    "green": "#56a64b",
    "yellow": "#e0b400",
    "orange": "#ff780a",
    "red": "#e02f44",
    "blue": "#3274d9",
}
PALETTE = (
    *("#56a64b", "#e0b400", "#3274d9", "#ff780a", "#e02f44"),
    *("#8f3bb8", "#37872d", "#1f9fae", "#a16a00", "#705da0"),
)
STYLE = """\
    text { font-family: "DejaVu Sans", Verdana, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 11px; fill: #30363d; }
    .title { font-size: 12px; font-weight: bold; fill: #11161c; }
    .row { font-size: 15px; font-weight: bold; fill: #11161c; }
    .axis { font-size: 10px; fill: #57606a; }
    .end { text-anchor: end; }
    .middle { text-anchor: middle; }
    .panel { fill: #ffffff; stroke: #d0d7de; }
    .grid { stroke: #e7ebef; }
    .empty { fill: #8c959f; text-anchor: middle; }
"""  # noqa: E501 (one rule a line)


def number(value: float) -> str:
    """A coordinate."""
    return f"{value:.1f}".removesuffix(".0")


def text(x: float, y: float, words: str, kind: str = "", **style: str) -> str:
    """Words at a place."""
    named = f' class="{kind}"' if kind else ""
    said = ";".join(f"{key.replace('_', '-')}:{value}" for key, value in style.items())
    styled = f' style="{said}"' if said else ""
    return f'<text{named} x="{number(x)}" y="{number(y)}"{styled}>{escape(words)}</text>\n'


def box(x: float, y: float, width: float, height: float, fill: str = "", **more: str) -> str:
    """A rectangle."""
    given = {"fill": fill, **more} if fill else more
    said = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in given.items())
    said = said.replace(" kind=", " class=")
    at = f'x="{number(x)}" y="{number(y)}"'
    return f'<rect {at} width="{number(width)}" height="{number(height)}"{said}/>\n'


def path(points: list[tuple[float, float]], *, color: str, fill: float = 0.0) -> str:
    """A line through points, or where `fill` is its opacity, the area that they enclose."""
    way = " ".join(f"{number(x)},{number(y)}" for x, y in points)
    if fill:
        return f'<polygon points="{way}" fill="{color}" fill-opacity="{fill}"/>\n'
    return f'<polyline points="{way}" fill="none" stroke="{color}" stroke-width="1.5"/>\n'


def line(x1: float, y1: float, x2: float, y2: float) -> str:
    """A line of the grid."""
    ends = zip(("x1", "y1", "x2", "y2"), (x1, y1, x2, y2), strict=True)
    return (
        f'<line class="grid" {" ".join(f"{k}={chr(34)}{number(v)}{chr(34)}" for k, v in ends)}/>\n'
    )


def shortened(words: str, width: float, size: float = 6.4) -> str:
    """Words that fit into a width."""
    room = int(width / size)
    return words if len(words) <= room else f"{words[: max(room - 1, 1)]}…"


def value_of(value: float, unit: str) -> str:
    """A value with its unit."""
    match unit:
        case "s":
            return _seconds(value)
        case "bytes":
            return f"{_short(value / (1 << 30))} GiB" if value else "0 B"
        case "percentunit":
            return f"{_short(100 * value)}%"
        case "cpm":
            return f"{_short(value)}/min"
        case _:
            return _short(value)


def _seconds(value: float) -> str:
    if value == 0:
        return "0 s"
    if value < 1:
        return f"{_short(1000 * value)} ms"
    return f"{_short(value)} s" if value < 120 else f"{_short(value / 60)} min"


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
