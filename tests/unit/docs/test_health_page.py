"""docs/health.md says of each fact what the tables of health/ say."""

import re
from collections.abc import Iterator
from pathlib import Path

from dra_driver.devices.health import findings
from dra_driver.devices.health.findings import Finding, Severity
from dra_driver.settings import Settings

PAGE = (Path(__file__).parents[3] / "docs" / "health.md").read_text()


def rows(first: str) -> list[list[str]]:
    """The rows of the table whose first column is called so."""
    found, inside = [], False
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if not cells:
            inside = False
        elif cells[0] == first:
            inside = True
        elif inside and set(cells[0]) != {"-"}:
            found.append(cells)
    return found


def said(finding: Finding) -> tuple[str, str, str, str]:
    """What the page has to say of a finding: its remedy, severity, taint and reason."""
    value = f"={finding.value}" if finding.value else ""
    reason = finding.reason.removeprefix(f"XID {finding.value}: ")
    return str(finding.remedy), str(finding.severity), f"`{finding.cause}{value}`", reason


def told() -> Iterator[tuple[str, str, str, str]]:
    """The same as the page says it: a cell has a line for each reason, with all its taints."""
    for remedy, severity, cell in rows("remedy"):
        for line in cell.split("<br>"):
            taints, _, reason = line.partition(": ")
            yield from ((remedy, severity, taint, reason) for taint in taints.split(", "))


def xids(after: str) -> set[int]:
    """The numbers of the first list after a text, with its ranges."""
    found: set[int] = set()
    text = PAGE.partition(after)[2].split("\n\n")[1]
    for one in re.split(r", *|\n", text):
        first, _, last = one.partition(" to ")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def test_each_fact_has_its_place_and_no_other_has() -> None:
    remedy, severity, _, reason = said(findings.unknown_xid(999))
    any_other = (remedy, severity, "`xid=` any other", reason)
    facts = [said(one) for one in (*findings.known(), findings.UNKNOWN_ACTION)]
    assert sorted(told()) == sorted([*facts, any_other])


def test_the_xids_that_change_nothing_are_those_of_the_tables() -> None:
    assert xids("Errors of the program that ran") == findings.APPLICATION_XIDS
    assert xids("And XIDs that only accompany") == findings.INFORMATIVE_XIDS


def test_severities_have_the_effects_that_hold_by_default() -> None:
    effects = {cells[0].strip("`"): cells[2:] for cells in rows("severity")}
    assert effects.keys() == set(Severity)
    for severity in Severity:
        effect, setting = effects[severity]
        usual = Settings(node_name="n")
        held = usual.remark_effect if severity is Severity.REMARK else f"taint_{severity}"
        assert setting == f"`--taint-{severity}`"
        default = getattr(usual, held, held)
        assert effect == {"off": "none"}.get(default, default)
