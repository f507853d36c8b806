"""docs/health.md says of each fact what the tables of health/ say."""

import re
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


def row(finding: Finding) -> list[str]:
    value = f"={finding.value}" if finding.value else ""
    name = f"`{finding.cause}{value}`"
    return [name, finding.reason, str(finding.severity), str(finding.remedy)]


def xids(after: str) -> set[int]:
    """The numbers of the first list after a text, with its ranges."""
    found: set[int] = set()
    text = PAGE.partition(after)[2].split("\n\n")[1]
    for one in re.split(r", *|\n", text):
        first, _, last = one.partition(" to ")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def test_each_fact_has_its_row_and_no_other_has() -> None:
    told = rows("taint")
    unknown = findings.unknown_xid(999)
    assert told[-1][0] == "`xid=` any other"
    assert told[-1][2:] == [str(unknown.severity), str(unknown.remedy)]
    assert told[:-1] == [row(one) for one in (*findings.known(), findings.UNKNOWN_ACTION)]


def test_the_xids_that_change_nothing_are_those_of_the_tables() -> None:
    assert xids("Errors of the program that ran") == findings.APPLICATION_XIDS
    assert xids("And what only accompanies") == findings.INFORMATIVE_XIDS


def test_severities_have_the_effects_that_hold_by_default() -> None:
    told = {cells[0].strip("`"): cells[2:] for cells in rows("severity")}
    assert told.keys() == set(Severity)
    for severity in Severity:
        effect, setting = told[severity]
        usual = Settings(node_name="n")
        held = usual.remark_effect if severity is Severity.REMARK else f"taint_{severity}"
        assert setting == f"`--taint-{severity}`"
        default = getattr(usual, held, held)
        assert effect == {"off": "none"}.get(default, default)
