"""hack/durations.py: what is printed of the reports of a run."""

from pathlib import Path

import durations

REPORT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest">
<testcase classname="tests.unit.slices.test_order" name="test_first" time="1.5" />
<testcase classname="tests.unit.slices.test_pool" name="test_second[a]" time="0.25" />
<testcase classname="tests.property.test_claims.TestNode" name="runTest" time="12.0" />
</testsuite></testsuites>
"""


def test_runs_folders_and_the_slowest_tests_are_printed(tmp_path: Path) -> None:
    (tmp_path / "unit.xml").write_text(REPORT)
    assert durations.lines({"unit": durations.cases(tmp_path / "unit.xml")}) == [
        "unit: 3 tests, 14 s of all processes",
        "     12.0 s      1 tests/property",
        "      1.8 s      2 tests/unit/slices",
        "the slowest 30:",
        "     12.0 s tests.property.test_claims.TestNode::runTest",
        "      1.5 s tests.unit.slices.test_order::test_first",
        "      0.2 s tests.unit.slices.test_pool::test_second[a]",
    ]


def test_no_more_than_the_slowest_thirty_are_printed(tmp_path: Path) -> None:
    found = [durations.Case(float(number), "tests/unit", f"t::{number}") for number in range(40)]
    said = durations.lines({"unit": found})
    slowest = said[said.index("the slowest 30:") + 1 :]
    assert [line.split("::")[1] for line in slowest] == [str(number) for number in range(39, 9, -1)]
