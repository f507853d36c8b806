"""docs/troubleshooting.md has every text of the driver's errors, and every check of doctor."""

import re
from functools import cache
from pathlib import Path

import pytest

from dra_driver.admin.doctor.checks.finding import Severity
from dra_driver.admin.doctor.every_check import CHECKS
from error_texts import GAP, Site, sites

PAGE = Path(__file__).parents[3] / "docs" / "troubleshooting.md"
WHERE = (
    *("claims", "sharing", "mps", "devices", "cdi", "kubelet", "kube", "ops", "shares", "slices"),
    *("host", "node"),
)
"""What runs in the driver and in the MPS supervisor; commands tell their errors themselves."""


def rows(header: str) -> list[list[str]]:
    """The rows of the tables whose first column is called so, cell by cell."""
    found, inside = [], False
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not line.startswith("|"):
            inside = False
        elif cells[0] == header:
            inside = True
        elif inside and set(cells[0]) != {"-"}:
            found.append(cells)
    return found


def excerpts() -> list[str]:
    """What the page quotes of errors; events are not among them."""
    cells = [row[0] for row in rows("text") if not row[0].startswith("event ")]
    return [quoted for cell in cells for quoted in re.findall(r"`([^`]+)`", cell)]


def quotes(excerpt: str, site: Site) -> bool:
    """Whether the pieces of an excerpt stand in an error's text, one after the other."""
    pieces = [piece.strip() for piece in excerpt.split("…") if piece.strip()]
    pattern = ".*".join(map(re.escape, pieces))
    return any(
        # No piece may lie over a gap: what stands there is not known.
        re.search(pattern, text.replace(GAP, "\n"), re.DOTALL)
        for text in site.texts
    )


@cache
def all_sites() -> list[Site]:
    return list(sites(*WHERE))


def test_every_error_text_is_on_the_page() -> None:
    quoted = excerpts()
    missing = [
        str(site)
        for site in all_sites()
        if site.texts and not any(quotes(excerpt, site) for excerpt in quoted)
    ]
    if missing:
        pytest.fail(
            "\n".join(["No row of a table `text` in docs/troubleshooting.md quotes:", *missing]),
            pytrace=False,
        )


def test_every_excerpt_is_the_text_of_an_error() -> None:
    stale = [
        excerpt for excerpt in excerpts() if not any(quotes(excerpt, site) for site in all_sites())
    ]
    assert stale == []


def test_every_check_of_doctor_is_listed() -> None:
    listed = PAGE.read_text().partition("\nThe checks look at:\n")[2].partition("\n## ")[0]
    assert re.findall(r"^- `([\w-]+)`: ", listed, re.MULTILINE) == [check.id for check in CHECKS]


def test_every_severity_has_a_row() -> None:
    assert {row[0].strip("`") for row in rows("severity")} == set(Severity)


def test_links_within_the_page_lead_somewhere() -> None:
    text = PAGE.read_text()
    titles = re.findall(r"^##+ (.+)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors
