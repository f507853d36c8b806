"""The dashboard's JSON as values: rows of panels, and what each asks Prometheus."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from charts import FOLDER

FILE = FOLDER / "dashboards" / "dra-driver.json"

# What Grafana puts in place of variables when all is shown, for a scrape each minute.
_SHOWN = {
    "$cluster": ".*",
    "$node": ".*",
    "$namespace": ".*",
    "$__rate_interval": "5m",
    "$__interval": "5m",
    "$__range": "6h",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query of a panel, with nothing of Grafana's left in it."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel. `x`, `y`, `width` and `height` in units of Grafana's grid."""

    kind: str
    title: str
    x: int
    y: int
    width: int
    height: int
    queries: tuple[Query, ...]
    source: dict[str, Any]

    @property
    def unit(self) -> str:
        """Its values' unit, by Grafana's name."""
        return str(self.source["fieldConfig"]["defaults"]["unit"])


def panels(board: dict[str, Any]) -> Iterator[Panel]:
    """All panels of a dashboard, its rows among them, from the top."""
    for panel in board["panels"]:
        place = panel["gridPos"]
        yield Panel(
            kind=panel["type"],
            title=panel["title"],
            x=place["x"],
            y=place["y"],
            width=place["w"],
            height=place["h"],
            queries=tuple(_query(each) for each in panel.get("targets", ())),
            source=panel,
        )


def shown(text: str) -> str:
    """A query with Grafana's variables filled in."""
    for name, value in _SHOWN.items():
        text = text.replace(name, value)
    return text


def load() -> dict[str, Any]:
    """The chart's dashboard."""
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def _query(target: dict[str, Any]) -> Query:
    legend = target["legendFormat"]
    return Query(expr=shown(target["expr"]), legend="" if legend == "__auto" else legend)
