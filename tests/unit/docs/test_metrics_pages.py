"""The pages list each metric that there is, with its labels, and no other."""

import re
from pathlib import Path

import pytest

from dra_driver.ops.metrics import Metrics, MpsMetrics
from dra_driver.ops.usage_metrics import UsageMetric
from exported import Exported, exported, listed, of_driver, of_supervisor, without_parts
from promql import mistakes
from scrape import metrics_text

DOCS = Path(__file__).parents[3] / "docs"
USAGE = {f"nvidia_dra_{metric.value[0]}" for metric in UsageMetric}


def labels(metrics: Metrics | MpsMetrics) -> dict[str, frozenset[str]]:
    found = Exported()
    found.add(metrics_text(metrics.wsgi_app))
    return {
        name: labels
        for name, labels in without_parts(found.labels).items()
        if name.startswith("nvidia_dra_")
    }


@pytest.mark.parametrize(
    ("page", "metrics"), [("operations.md", of_driver()), ("mps.md", of_supervisor())]
)
def test_a_page_lists_each_metric_with_its_labels(page: str, metrics: Metrics | MpsMetrics) -> None:
    there = {name: one for name, one in labels(metrics).items() if name not in USAGE}
    assert listed((DOCS / page).read_text()) == there


def test_metrics_of_usage_have_a_page_of_their_own() -> None:
    text = (DOCS / "usage.md").read_text()
    assert set(listed(text)) == USAGE
    said = text.partition("All have the label `driver`;")[2].partition("\n\n")[0]
    for one in {label for metric in UsageMetric for label in metric.value[2]}:
        assert f"`{one}`" in said or f"by `{one}`" in text


def test_queries_on_pages_are_about_metrics_that_there_are() -> None:
    known = exported()
    for page in DOCS.rglob("*.md"):
        for block in re.findall(r"```promql\n(.*?)```", page.read_text(), re.DOTALL):
            for query in block.splitlines():
                if not query.startswith("#"):
                    assert list(mistakes(query, known)) == [], page
