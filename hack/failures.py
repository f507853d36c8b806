"""Says last of all which tests failed, for those who read only the end of a log.

In: a folder of JUnit XML reports, and beside each, NAME.status with the exit status of its pytest.
"""

import sys
from pathlib import Path
from xml.etree import ElementTree as ET

LINES = 12
"""So many lines of each failure are printed: the end of its traceback, with the message."""


def failures(report: Path) -> list[str]:
    """Return a text for each failed test."""
    found = []
    # The reports were written by our own pytest a moment ago.
    for case in ET.parse(report).iter("testcase"):  # noqa: S314
        for bad in (*case.iter("failure"), *case.iter("error")):
            end = (bad.text or bad.get("message") or "").rstrip().splitlines()[-LINES:]
            name = f"{case.get('classname')}::{case.get('name')}"
            found.append("\n".join([f"FAILED {name}", *(f"    {line}" for line in end)]))
    return found


def texts(folder: Path) -> list[str]:
    """Return a text for each failed test, and one for each pytest that failed and names none."""
    said = []
    for status in sorted(folder.glob("*.status")):
        report = status.with_suffix(".xml")
        found = failures(report) if report.exists() else []
        if not found and (code := status.read_text().strip()) != "0":
            found = [f"FAILED {status.stem}: pytest ended with {code} and names no test: see above"]
        said += found
    return said


def main(folder: str) -> int:
    """Print all."""
    for text in texts(Path(folder)):
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
