"""What people look at: the page, the picture, the table."""

import re
from html.parser import HTMLParser

import pytest

from bench_reports import ALONE, CARD, SIMULATED, cases, report, result, strategy, sweep
from dra_driver.bench.gathering import failed
from dra_driver.bench.model import Case, Latency, Tenant
from dra_driver.bench.report import plot
from dra_driver.bench.report.page import page
from dra_driver.bench.report.view import COSTS, as_text, remarks, rows
from dra_driver.bench.report.view import SIMULATED as NO_RESULTS
from dra_driver.bench.strategies import Sharing

TWO = strategy(Sharing.MPS, 2)


class Seen(HTMLParser):
    """The tags of a page, what they refer to, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name.endswith(("href", "src"))]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def drawn() -> str:
    return page([report(sweep=sweep())], plot.svg)


def test_the_page_needs_nothing_from_elsewhere(drawn: str) -> None:
    seen = Seen(drawn)
    assert not {"script", "link", "img", "iframe", "image"} & set(seen.tags)
    assert all(reference.startswith("#") for reference in seen.references), seen.references
    assert "@import" not in drawn
    assert not re.search(r"url\((?!#)", drawn)


def test_the_page_has_the_picture_with_its_text_and_the_table(drawn: str) -> None:
    seen = Seen(drawn)
    assert seen.tags.count("svg") == 1
    words = " ".join(seen.words)
    for title in ("The worst tenant's 99th percentile of latency", "goal 50 ms"):
        assert title in words
    assert "Throughput" in page([report()], plot.svg)
    assert seen.tags.count("tr") == 2 * (1 + len(cases()))
    assert "driver" in seen.words
    assert CARD.driver_version in words


def test_texts_from_machines_are_escaped() -> None:
    odd = CARD.model_copy(update={"name": "<script>alert(1)</script>"})
    reason = "<b>no</b> & so on"
    text = page([report(card=odd, cases=(failed(ALONE, reason),))], plot.svg)
    assert "script" not in Seen(text).tags
    assert "&lt;b&gt;no&lt;/b&gt; &amp; so on" in text


def test_the_page_shows_no_figures_of_simulated_gpus() -> None:
    simulated = report(card=SIMULATED, cases=(Case(strategy=ALONE, state="passed"),))
    text = page([simulated], plot.svg)
    assert NO_RESULTS in text
    assert "svg" not in Seen(text).tags
    assert "table" not in Seen(text).tags
    assert NO_RESULTS in as_text(simulated)
    assert "alone: ran, without results" in as_text(simulated)


def test_the_table_has_ratios_and_a_dash_where_there_is_no_figure() -> None:
    table, costs = rows(report()), rows(report(), COSTS)
    assert table[0][:5] == ("strategy", "work/s", "all", "least", "p50 ms")
    by_name = {row[0]: dict(zip(table[0], row, strict=True)) for row in table[1:]}
    assert by_name["alone"]["all"] == "1.00"
    assert by_name["7 by MIG 1g.10gb"]["all"] == "6.72"
    assert by_name["7 by MIG 1g.10gb"]["work/s"] == "134 requests/s"
    assert "isolation" not in table[0]
    by_name = {row[0]: dict(zip(costs[0], row, strict=True)) for row in costs[1:]}
    assert by_name["7 by MIG 1g.10gb"]["SM %"] == "–"  # noqa: RUF001


def test_caveats_on_figures_are_shown() -> None:
    late = Tenant(number=1, result=result(20.0, 11.0, late_seconds=3.1))
    early = Tenant(number=0, result=result(20.0, 11.0, late_seconds=0.4))
    two = Case(strategy=TWO, state="measured", tenants=(early, late))
    few = result(2.0, 11.0, latency=Latency(p50_ms=5.0, p99_ms=11.0, count=40))
    alone = Case(strategy=ALONE, state="measured", tenants=(Tenant(number=0, result=few),))
    said = remarks(report(cases=(alone, two)))
    assert [text.partition(": ")[2][:41] for text in said] == [
        "a tenant has 40 latencies, and with fewer",
        "a tenant began 2.7 s after the others: us",
    ]
    (of_mig,) = remarks(report())
    assert of_mig.startswith(
        "SM % and mem % are not available for MIG devices: NVML does not report"
    )
    whole = [case for case in report().cases if case.strategy.sharing is not Sharing.MIG]
    assert remarks(report(cases=tuple(whole))) == []
