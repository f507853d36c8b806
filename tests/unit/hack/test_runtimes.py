"""The table of container runtimes on a page, and what of a report it says."""

from pathlib import Path

import pytest
import runtimes

PAGE = f"before\n{runtimes.BEGIN}\n{runtimes.END}\nafter\n"
OLD = ("containerd 1.7.35", "runc 1.1.5", "all 3", "1 May 2026")
NEW = ("containerd 2.4.2", "runc 1.1.5", "all 3", "1 May 2026")
CRUN = ("containerd 2.4.2", "crun 1.27.1", "not to be had: no source has crun", "1 May 2026")


def rows(page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith("|")][2:]


def row(*words: str) -> str:
    return f"| {' | '.join(words)} |"


def test_each_pair_of_runtimes_has_a_row_which_a_later_run_replaces() -> None:
    page = PAGE
    for one in (OLD, NEW, CRUN):
        page = runtimes.with_row(page, one)
    assert rows(page) == [row(*one) for one in (OLD, NEW, CRUN)]
    later = ("containerd 2.5.0", "runc 1.3.0", "2 of 3; not `test_a`", "2 May 2026")
    page = runtimes.with_row(page, later)
    assert rows(page) == [row(*one) for one in (OLD, later, CRUN)]
    assert page.startswith("before\n")
    assert page.endswith("\nafter\n")


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ({"test_a": "", "test_b": ""}, "all 2"),
        (
            {"test_a": "", "test_b": "<failure/>", "test_c": "<error/>"},
            "1 of 3; not `test_b`, `test_c`",
        ),
        ({"test_a": "", "test_b": "<skipped/>"}, "all 1"),
        ({"test_a": "<skipped/>"}, "0 of 0; not one"),
    ],
)
def test_what_failed_is_named_and_what_was_skipped_does_not_count(
    tmp_path: Path, tests: dict[str, str], said: str
) -> None:
    cases = (f'<testcase name="{name}">{inside}</testcase>' for name, inside in tests.items())
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuite>{''.join(cases)}</testsuite>")
    assert runtimes.passed(report) == said


def test_every_test_that_it_runs_exists() -> None:
    for name in runtimes.TESTS:
        path, *words = name.split("::")
        text = (runtimes.REPOSITORY / "tests/e2e" / path).read_text()
        assert all(f"{word}(" in text or f"class {word}:" in text for word in words), name
