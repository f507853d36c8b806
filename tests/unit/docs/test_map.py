"""docs/how-it-works.md is short, and every page names only files that are there.

The tables of modules at its end are generated; `hack/generate --check` compares them.
"""

import re
from pathlib import Path

import map as map_of_modules
import pytest

REPOSITORY = Path(__file__).parents[3]
PYTHON_FILE = re.compile(r"`([\w./]*\w\.py)\b[^`]*`")


def test_the_map_is_read_in_a_quarter_of_an_hour() -> None:
    prose, begin, _ = (REPOSITORY / map_of_modules.PAGE).read_text().partition(map_of_modules.BEGIN)
    assert begin
    assert len(prose.split()) <= 2500


def test_every_python_file_that_a_page_names_is_there() -> None:
    """A path may be short: `nvml/library.py` names dra_driver/devices/nvml/library.py."""
    folders = ("dra_driver", "api", "hack", "tests")
    there = [f"/{path}" for top in folders for path in (REPOSITORY / top).rglob("*.py")]
    pages = [*REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("*.md")]
    stale = [
        f"{page.relative_to(REPOSITORY)}:{number}: there is no `{name}`"
        for page in sorted(pages)
        if page.name != "CHANGELOG.md"
        for number, line in enumerate(page.read_text().splitlines(), start=1)
        for name in PYTHON_FILE.findall(line)
        if not any(path.endswith(f"/{name}") for path in there)
    ]
    if stale:
        pytest.fail("\n".join(stale), pytrace=False)
