"""The dashboard's JSON as values: rows of panels, and what each asks Prometheus."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
FILE = REPOSITORY / "manifests" / "chart" / "dashboards" / "dra-driver.json"

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
    instant: bool


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
    def defaults(self) -> dict[str, Any]:
        """How its fields are shown."""
        found: dict[str, Any] = self.source["fieldConfig"]["defaults"]
        return found

    @property
    def custom(self) -> dict[str, Any]:
        """The same, of this kind of panel alone."""
        found: dict[str, Any] = self.defaults.get("custom", {})
        return found

    @property
    def step(self) -> float:
        """Seconds from one value to the next."""
        return 300.0 if "interval" in self.source else 120.0

    @property
    def unit(self) -> str:
        """Its values' unit, by Grafana's name."""
        return str(self.defaults["unit"])

    def override(self, name: str, key: str) -> Any:
        """What is said of one field alone; None if nothing is."""
        for one in self.source["fieldConfig"]["overrides"]:
            if _matches(one["matcher"], name):
                for each in one["properties"]:
                    if each["id"] == key:
                        return each["value"]
        return None


def _matches(matcher: dict[str, str], name: str) -> bool:
    if matcher["id"] == "byRegexp":
        return re.search(matcher["options"].strip("/"), name) is not None
    return matcher["options"] == name


def panels(board: dict[str, Any]) -> Iterator[Panel]:
    """All panels of a dashboard, its rows among them, from the top."""
    for one in board["panels"]:
        place = one["gridPos"]
        yield Panel(
            kind=one["type"],
            title=one["title"],
            x=place["x"],
            y=place["y"],
            width=place["w"],
            height=place["h"],
            queries=tuple(_query(each) for each in one.get("targets", ())),
            source=one,
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
    return Query(
        expr=shown(target["expr"]),
        legend="" if legend == "__auto" else legend,
        instant=target["instant"],
    )
