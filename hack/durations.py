"""Prints where the tests' time went: by run and folder, and the slowest tests.

In: a folder of JUnit XML reports, one of each pytest that ran.
"""

import sys
from collections import Counter
from itertools import islice, takewhile
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

SLOWEST = 30
FOLDER_DEPTH = 3
"""tests/contract/claims, say; what is below counts as that."""


class Case(NamedTuple):
    """One test that ran, with what it and its fixtures took."""

    seconds: float
    folder: str
    name: str


def cases(report: Path) -> list[Case]:
    """Read a report."""
    found = []
    # The reports were written by our own pytest a moment ago.
    for case in ET.parse(report).iter("testcase"):  # noqa: S314
        module, name = case.get("classname", ""), case.get("name", "")
        parts = module.split(".")
        folders = takewhile(lambda part: not part.startswith("test_"), parts)
        folder = "/".join(islice(folders, FOLDER_DEPTH))
        found.append(Case(float(case.get("time", 0)), folder, f"{module}::{name}"))
    return found


def lines(reports: dict[str, list[Case]]) -> list[str]:
    """Return what is printed."""
    said = []
    for run, found in reports.items():
        seconds: Counter[str] = Counter()
        tests: Counter[str] = Counter()
        for case in found:
            seconds[case.folder] += case.seconds  # type: ignore[assignment]
            tests[case.folder] += 1
        said.append(f"{run}: {len(found)} tests, {sum(seconds.values()):.0f} s of all processes")
        said += [f"{took:9.1f} s {tests[one]:6} {one}" for one, took in seconds.most_common()]
    slowest = sorted((case for found in reports.values() for case in found), reverse=True)
    said.append(f"the slowest {SLOWEST}:")
    return said + [f"{case.seconds:9.1f} s {case.name}" for case in slowest[:SLOWEST]]


def main(folder: str) -> int:
    """Print all."""
    reports = {report.stem: cases(report) for report in sorted(Path(folder).glob("*.xml"))}
    print("\n".join(lines(reports)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
