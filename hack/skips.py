"""Fails when a test was skipped whose reason is not in tests/allowed-skips.txt.

In: a folder of JUnit XML reports. Each line of the list that is not a comment is a regular
expression which must match the whole reason. Prints every skip with its reason. Only warns unless
CI is set, so that a developer without root sees what was left out and goes on.
"""

import os
import re
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

ALLOWED = Path(__file__).parent.parent / "tests" / "allowed-skips.txt"


def main(folder: str) -> int:
    """Print all skips; return 1 when CI is set and one of them is not allowed."""
    lines = (line.strip() for line in ALLOWED.read_text().splitlines())
    allowed = [re.compile(line) for line in lines if line and not line.startswith("#")]
    refused = 0
    for report in sorted(Path(folder).glob("*.xml")):
        # The reports were written by our own pytest a moment ago.
        for case in ET.parse(report).iter("testcase"):  # noqa: S314
            skip = case.find("skipped")
            if skip is None:
                continue
            reason = skip.get("message") or ""
            known = any(pattern.fullmatch(reason) for pattern in allowed)
            refused += not known
            mark = "allowed" if known else "NOT ALLOWED"
            print(f"skipped ({mark}): {case.get('classname')}::{case.get('name')}: {reason}")
    if refused and os.environ.get("CI"):
        print(f"error: {refused} skipped tests are not in {ALLOWED.name}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
