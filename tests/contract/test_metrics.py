"""What the driver's own process exports is what dashboard, alerts and pages go by.

And Prometheus, by promtool, answers what the dashboard asks.
"""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from promtool import said
from testbed.apiserver.server import ApiServer

import board
from exported import of_driver, of_supervisor, same_as
from scrape import metrics_text
from worlds.process import ProcessNode


def test_a_scrape_of_the_driver_has_the_documented_metrics(tmp_path: Path, api: ApiServer) -> None:
    node = ProcessNode(tmp_path, api)
    node.install_gpus("l4x2")
    node.driver.env |= {"HTTP_ENDPOINT": "127.0.0.1:0", "USAGE_METRICS": "true"}
    node.driver.start()
    try:
        port = node.driver.wait_log("http endpoint opened")["port"]
        node.driver.wait_log("driver started")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            same_as(of_driver(), answer.read().decode())
    finally:
        node.driver.kill()


@pytest.mark.timeout(600)
def test_prometheus_answers_what_each_panel_asks(promtool: Path, tmp_path: Path) -> None:
    queries = [query.expr for panel in board.panels(board.load()) for query in panel.queries]
    answered = {"eval_time": "60m", "exp_samples": [{"labels": "{}", "value": 1}]}
    test = {
        "interval": "1m",
        "input_series": list(fleet()),
        "promql_expr_test": [{"expr": f"count({one}) > bool 0", **answered} for one in queries],
    }
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}))
    assert len(queries) > 40
    assert "SUCCESS" in said(promtool, "test", "rules", file)


def fleet() -> Iterator[dict[str, str]]:
    """All that can be exported: on one node there is nothing of it, on the other ever more."""
    programs = {"driver": of_driver().wsgi_app, "mps-supervisor": of_supervisor().wsgi_app}
    for node, values in (("quiet", "0x60"), ("busy", "0+1x60")):
        for name, program in programs.items():
            target = {"cluster": "lab", "instance": f"{node}:{name}", "node": node}
            for family in text_string_to_metric_families(metrics_text(program)):
                for sample in family.samples:
                    # Where both have a label, what Prometheus keeps of it is the target's.
                    labels = (sample.labels | target).items()
                    inside = ",".join(f"{key}={json.dumps(value)}" for key, value in labels)
                    yield {"series": f"{sample.name}{{{inside}}}", "values": values}
