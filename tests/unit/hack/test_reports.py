"""hack/reports.py: what the end of a log says of the tests that failed."""

from pathlib import Path

import reports

REPORT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest">
<testcase classname="tests.unit.test_one" name="test_good" time="1.5" />
<testcase classname="tests.unit.test_one" name="test_bad[a]" time="1.5"><failure
 message="assert 1 == 2">{text}</failure></testcase>
<testcase classname="tests.unit.test_two" name="test_broken" time="1.5"><error
 message="failed on setup" /></testcase>
</testsuite></testsuites>
"""


def test_each_failed_test_is_named_with_the_end_of_its_traceback(tmp_path: Path) -> None:
    text = "\n".join(f"line {number}" for number in range(20))
    (tmp_path / "unit.xml").write_text(REPORT.format(text=text))
    (tmp_path / "unit.status").write_text("1\n")
    assert reports.failures(tmp_path) == [
        "\n    ".join(
            ["FAILED tests.unit.test_one::test_bad[a]", *(f"line {n}" for n in range(8, 20))]
        ),
        "FAILED tests.unit.test_two::test_broken\n    failed on setup",
    ]


def test_a_pytest_that_failed_without_a_failed_test_is_named(tmp_path: Path) -> None:
    (tmp_path / "e2e.xml").write_text("<testsuites></testsuites>")
    (tmp_path / "e2e.status").write_text("3\n")
    (tmp_path / "own.status").write_text("137\n")  # killed: it wrote no report
    (tmp_path / "unit.status").write_text("0\n")
    assert reports.failures(tmp_path) == [
        "FAILED e2e: pytest ended with 3 and names no test: see above",
        "FAILED own: pytest ended with 137 and names no test: see above",
    ]
