"""Prints what the reports of a run of the tests contain: `hack/reports.py FOLDER [PART …]`.

In: a folder of JUnit XML reports, one of each pytest that ran, and beside each NAME.status with its
exit status. The parts are `durations` (where the time went), `skips`, and `failures`, which come
last, for people who read only the end of a log. Each line of tests/allowed-skips.txt that is not a
comment is a regular expression, one of which must match the whole reason of a skip; if CI is set,
any other skip is an error, and otherwise it is only printed.
"""

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice, takewhile
from pathlib import Path
from xml.etree import ElementTree as ET

ALLOWED = Path(__file__).parent.parent / "tests" / "allowed-skips.txt"
NOT_ALLOWED = "NOT ALLOWED"
SLOWEST = 30
LINES = 12
"""How many lines of each failure are printed: the end of its traceback, with the message."""

FOLDER_DEPTH = 3
"""The depth of folders such as tests/contract/claims, which include what is below them."""


def cases(report: Path) -> Iterator[ET.Element]:
    """Yield the tests of a report."""
    # It was written by our own pytest a moment ago.
    return ET.parse(report).iter("testcase") if report.exists() else iter(())  # noqa: S314


def name_of(case: ET.Element) -> str:
    return f"{case.get('classname')}::{case.get('name')}"


def durations(folder: Path) -> list[str]:
    """Return the time of each run by folders, and the slowest tests."""
    said, every = [], []
    for report in sorted(folder.glob("*.xml")):
        seconds: Counter[str] = Counter()
        tests: Counter[str] = Counter()
        for case in cases(report):
            took, parts = float(case.get("time", 0)), case.get("classname", "").split(".")
            folders = takewhile(lambda part: not part.startswith("test_"), parts)
            place = "/".join(islice(folders, FOLDER_DEPTH))
            seconds[place] += took  # type: ignore[assignment]  # typed for whole numbers
            tests[place] += 1
            every.append((took, name_of(case)))
        total = f"{tests.total()} tests, {sum(seconds.values()):.0f} s of all processes"
        said.append(f"{report.stem}: {total}")
        said += [f"{took:9.1f} s {tests[name]:6} {name}" for name, took in seconds.most_common()]
    said.append(f"the slowest {SLOWEST}:")
    slowest = sorted(every, reverse=True)[:SLOWEST]
    return said + [f"{took:9.1f} s {name}" for took, name in slowest]


def skips(folder: Path) -> list[str]:
    """Return each skip with its reason, and whether that is allowed."""
    lines = (line.strip() for line in ALLOWED.read_text().splitlines())
    allowed = [re.compile(line) for line in lines if line and not line.startswith("#")]
    said = []
    for case in (own for report in sorted(folder.glob("*.xml")) for own in cases(report)):
        for skip in case.iter("skipped"):
            reason = skip.get("message") or ""
            known = any(pattern.fullmatch(reason) for pattern in allowed)
            mark = "allowed" if known else NOT_ALLOWED
            said.append(f"skipped ({mark}): {name_of(case)}: {reason}")
    return said


def failures(folder: Path) -> list[str]:
    """Return a text for each failed test, and one for each pytest that failed and names none."""
    said = []
    for status in sorted(folder.glob("*.status")):
        texts = []
        for case in cases(status.with_suffix(".xml")):
            for bad in (*case.iter("failure"), *case.iter("error")):
                end = (bad.text or bad.get("message") or "").rstrip().splitlines()[-LINES:]
                texts.append("\n    ".join([f"FAILED {name_of(case)}", *end]))
        if not texts and (code := status.read_text().strip()) != "0":
            texts = [f"FAILED {status.stem}: pytest ended with {code} and names no test: see above"]
        said += texts
    return said


def main(folder: str, *parts: str) -> int:
    """Print the parts; return 1 if CI is set and a skip is not allowed."""
    every = {"durations": durations, "skips": skips, "failures": failures}
    texts = {part: every[part](Path(folder)) for part in parts or every}
    for text in texts.values():
        print(*text, sep="\n", end="\n" if text else "")
    refused = sum(NOT_ALLOWED in text for text in texts.get("skips", ()))
    if refused and os.environ.get("CI"):
        print(f"error: {refused} skipped tests are not in {ALLOWED.name}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
