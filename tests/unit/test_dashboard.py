"""The chart's dashboard: Grafana can load it, and each query is about metrics that there are."""

import json
import re
from typing import Any

import pytest

import board
from exported import exported
from promql import mistakes, result_labels

BOARD = board.load()
PANELS = list(board.panels(BOARD))
DRAWN = [panel for panel in PANELS if panel.kind != "row"]
ASKING = [panel for panel in DRAWN if panel.kind != "text"]
EXPORTED = exported()
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
UNITS = {"none", "s", "bytes", "percentunit", "cpm"}

# What it does not show: alerts and `dra-driver status` tell of these.
NOT_SHOWN = {"nvidia_dra_last_publish_timestamp_seconds", "nvidia_dra_sharing_undo_errors_total"}


def variables() -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in BOARD["templating"]["list"]}


@pytest.mark.parametrize("panel", ASKING, ids=lambda panel: panel.title)
def test_a_panel_asks_for_metrics_and_labels_that_there_are(panel: board.Panel) -> None:
    assert panel.queries
    for query in panel.queries:
        assert list(mistakes(query.expr, EXPORTED)) == []
        asked = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
        assert asked <= result_labels(query.expr, EXPORTED)


def test_it_shows_what_is_exported() -> None:
    text = " ".join(query.expr for panel in ASKING for query in panel.queries)
    parts = ("_sum", "_count")
    names = {
        name
        for name in EXPORTED.labels
        if name.startswith("nvidia_dra_") and not name.endswith(parts)
    }
    assert {name for name in names if name not in text} == NOT_SHOWN


@pytest.mark.parametrize("panel", DRAWN, ids=lambda panel: panel.title)
def test_a_panel_has_all_that_grafana_needs(panel: board.Panel) -> None:
    source = panel.source
    assert source["title"]
    assert source["description"] or panel.kind == "text"
    assert source["datasource"] == SOURCE
    assert panel.unit in UNITS
    targets = source["targets"]
    assert [target["refId"] for target in targets] == [chr(65 + n) for n in range(len(targets))]
    for target in targets:
        assert target["datasource"] == SOURCE
        assert target["range"] is not target["instant"]
        # A bar or cell counts what happened since the one before, and nothing twice.
        assert ("$__interval" in target["expr"]) is ("interval" in source)
    shown_once = {"stat", "bargauge", "table"}
    assert {target["instant"] for target in targets} <= {panel.kind in shown_once}


def test_variables_are_there_and_used() -> None:
    text = json.dumps(BOARD["panels"])
    assert list(variables()) == ["datasource", "cluster", "node", "namespace"]
    assert variables()["datasource"]["type"] == "datasource"
    for name, one in variables().items():
        assert re.search(rf"\$\{{?{name}\b", text)
        if name == "datasource":
            continue
        assert one["datasource"] == SOURCE
        assert (one["allValue"], one["multi"], one["includeAll"]) == (".*", True, True)
        metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)", one["definition"]).groups()  # type: ignore[union-attr]
        assert one["query"]["query"] == one["definition"]
        assert list(mistakes(board.shown(metric), EXPORTED)) == []
        assert label in result_labels(board.shown(metric), EXPORTED)
    filled = [query.expr for panel in ASKING for query in panel.queries]
    assert not [query for query in filled if "$" in query]
    for panel in ASKING:
        for one in panel.source["targets"]:
            # Each selector heeds the choice of clusters and nodes.
            assert one["expr"].count("{") == one["expr"].count('cluster=~"$cluster", node=~"$node"')


def test_it_can_be_imported_and_provided_by_files() -> None:
    # The files that a sidecar writes get no inputs: the reader chooses the data source.
    assert "__inputs" not in BOARD
    assert BOARD["id"] is None
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", BOARD["uid"])
    assert BOARD["schemaVersion"] >= 39
    kinds = {require["id"] for require in BOARD["__requires"] if require["type"] == "panel"}
    assert kinds == {panel.kind for panel in DRAWN}


def test_a_table_names_and_sorts_by_columns_that_there_are() -> None:
    for panel in (one for one in ASKING if one.kind == "table"):
        columns = panel.source["transformations"][1]["options"]["renameByName"]
        (by,) = panel.source["options"]["sortBy"]
        assert by["displayName"] in columns.values()
        values = {column for column in columns if column.startswith("Value")}
        assert len(values) == len(panel.queries)
        for query in panel.queries:
            assert columns.keys() - values == result_labels(query.expr, EXPORTED)
