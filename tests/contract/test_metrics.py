"""What the driver's own process exports is what dashboard, alerts and pages go by.

And a real Prometheus answers what the dashboard asks.
"""

import urllib.request
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from dashboard import board
from dashboard.command import PICTURES, draw

from apiserver.server import ApiServer
from exported import of_driver, same_as
from worlds.process import ProcessNode


def test_a_scrape_of_the_driver_has_the_metrics_that_are_gone_by(
    tmp_path: Path, api: ApiServer
) -> None:
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
@pytest.mark.usefixtures("promtool")
def test_prometheus_answers_what_each_panel_asks(tmp_path: Path) -> None:
    draw(tmp_path)
    words = set()
    for name in PICTURES:
        root = ET.parse(tmp_path / name).getroot()  # noqa: S314 (just drawn)
        words |= {one.text for one in root.iter("{http://www.w3.org/2000/svg}text")}
    # A panel without an answer says so.
    assert "No data" not in words
    assert {panel.title for panel in board.panels(board.load())} <= words
