"""Reports as one HTML page that needs nothing else: no script, font or picture from elsewhere.

Text from machines and users is escaped; the drawing is inline SVG. Several reports are below each
other; they can be compared, because everything is a ratio.
"""

from collections.abc import Callable, Iterator, Sequence
from html import escape

from dra_driver.bench.model import Report, Sweep
from dra_driver.bench.report.beside import TITLE, beside_rows
from dra_driver.bench.report.verdict import advice
from dra_driver.bench.report.view import (
    COLUMNS,
    COSTS,
    READY,
    SIMULATED,
    Column,
    facts,
    remarks,
    rows,
)

_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>dra-driver bench</title>
<style>
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; margin: 2rem auto;
  max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 1rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .7rem; border-bottom: 2px solid #76b900; }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: 0 0 1rem; }
dt { color: #666; } dd { margin: 0; }
svg { width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .55rem; text-align: right; white-space: nowrap; }
th { border-bottom: 2px solid #888; color: #444; }
td { border-bottom: 1px solid #e4e4e4; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: #fff; }
.told { font-size: 1.1rem; border-left: 4px solid #76b900; padding-left: .8rem; }
.none { background: #fff6db; border: 1px solid #e0c25c; padding: .7rem 1rem; border-radius: 4px; }
pre { background: #f5f5f5; padding: .8rem 1rem; overflow-x: auto; font-size: 13px; }
ul { padding-left: 1.2rem; } small { color: #666; }
</style>
</head>
<body>
<h1>Which sharing strategy is best for this work</h1>
"""
_FOOT = "</body>\n</html>\n"


def page(
    reports: Sequence[Report], draw: Callable[[Report], str], names: Sequence[str] = ()
) -> str:
    """Return the page; `draw` returns the `svg` element of a report with results.

    `names` are those of several reports, which are compared.
    """
    beside = beside_rows(reports, names) if len(names) > 1 else []
    compared = ""
    if len(beside) > 1:
        compared = f'<h2>{escape(TITLE)}</h2>\n<div class="wide">{_rows(beside)}</div>\n'
    return _HEAD + "".join(_section(report, draw) for report in reports) + compared + _FOOT


def _section(report: Report, draw: Callable[[Report], str]) -> str:
    parts = [f"<h2>{escape(report.study.name)} on {escape(report.card.name)}</h2>"]
    told = advice(report)
    if told.sentence:
        parts.append(f'<p class="told">{escape(told.sentence)}</p>')
    parts.append("<dl>")
    parts += [f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts(report)]
    parts.append("</dl>")
    table = rows(report)
    if report.card.is_simulated:
        parts.append(f'<p class="none">{escape(SIMULATED)}</p>')
    elif len(table) == 1:
        parts.append('<p class="none">There are no results.</p>')
    else:
        parts += [draw(report), _table(table, COLUMNS), "<h3>What it took</h3>"]
        parts.append(_table(rows(report, COSTS), COSTS))
    if said := remarks(report):
        items = "".join(f"<li>{escape(text)}</li>" for text in said)
        parts.append(f"<h3>Notes</h3>\n<ul>{items}</ul>")
    if report.sweep is not None:
        parts.append(_sweep(report.sweep))
    elif told.strategy is not None:
        parts.append(f"<h3>{escape(f'{READY} {told.strategy.name}')}</h3>")
        parts += _ready(told.claim, told.share_config)
    return "\n".join(parts) + "\n"


def _ready(claim: str, share_config: str) -> Iterator[str]:
    for title, text in (("As a claim", claim), ("As a share config", share_config)):
        if text:
            yield f"<h3>{title}</h3>\n<pre>{escape(text)}</pre>"


def _rows(table: Sequence[Sequence[str]], means: Sequence[str] = ()) -> str:
    """Return a table with its head; `means` are what the columns after the first mean."""
    titles = [f' title="{escape(mean)}"' for mean in means] or [""] * (len(table[0]) - 1)
    head = "".join(
        f"<th{title}>{escape(cell)}</th>"
        for title, cell in zip(["", *titles], table[0], strict=True)
    )
    body = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table[1:]
    )
    return f"<table>\n<tr>{head}</tr>\n{body}\n</table>"


def _table(table: Sequence[Sequence[str]], columns: Sequence[Column]) -> str:
    used = [column for column in columns if column.head in table[0]]
    drawn = _rows(table, [column.means for column in used])
    said = "".join(
        f"<li><b>{escape(column.head)}</b>: {escape(column.means)}</li>" for column in used
    )
    return (
        f'<div class="wide">{drawn}</div>\n'
        f"<details><summary>What the columns mean</summary><ul>{said}</ul></details>"
    )


def _sweep(sweep: Sweep) -> str:
    parts = [f"<h3>The smallest share with at most {sweep.goal_ms:g} ms</h3>"]
    if sweep.chosen is None:
        parts.append('<p class="none">No step meets the goal.</p>')
    else:
        parts.append(f"<p>The smallest that meets it: <b>{escape(sweep.chosen.name)}</b></p>")
    if sweep.note:
        parts.append(f"<p>{escape(sweep.note)}</p>")
    parts += _ready(sweep.claim, sweep.share_config)
    return "\n".join(parts)
