"""Draws the dashboard: a made-up fleet, a real Prometheus, a picture for some rows each."""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from dashboard import board, history
from dashboard.drawing import Answers, picture
from dashboard.prometheus import PrometheusError, Series, Server, programs, serving

PICTURES = {
    "dashboard-fleet.svg": ("Fleet", "How long claims take"),
    "dashboard-health.svg": ("Health",),
    "dashboard-usage.svg": ("Who uses the GPUs", "MPS"),
}
"""Which rows are on which picture."""


def main(words: list[str]) -> int:
    """Do what the words say; return the exit status."""
    parser = argparse.ArgumentParser(prog="hack/dashboard", description=__doc__)
    parser.add_argument("verb", nargs="?", choices=["draw", "fetch"], default="draw")
    parser.add_argument(
        "--folder", type=Path, default=board.REPOSITORY / "docs" / "pictures", help="for pictures"
    )
    options = parser.parse_args(words)
    try:
        if options.verb == "fetch":
            print(programs())
        else:
            draw(options.folder)
    except PrometheusError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def draw(folder: Path) -> None:
    """Write all pictures."""
    samples = "".join(history.lines())
    with TemporaryDirectory() as place, serving(samples, Path(place)) as server:
        rows = answered(server)
    for name, titles in PICTURES.items():
        (folder / name).write_text(picture({title: rows[title] for title in titles}))


def answered(server: Server) -> dict[str, list[tuple[board.Panel, Answers]]]:
    """Ask Prometheus what each panel asks; the panels by their row's title."""
    rows: dict[str, list[tuple[board.Panel, Answers]]] = {}
    title = ""
    for panel in board.panels(board.load()):
        if panel.kind == "row":
            title = panel.title
            rows[title] = []
            continue
        rows[title].append((panel, [_ask(server, panel, query) for query in panel.queries]))
    return rows


def _ask(server: Server, panel: board.Panel, query: board.Query) -> list[Series]:
    if query.instant:
        return server.at(query.expr, history.END)
    return server.over(query.expr, begin=history.BEGIN, end=history.END, step=panel.step)
