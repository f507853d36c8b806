"""docs/how-it-works.md is short, and every page names only files that are there."""

import re
from pathlib import Path

import map as map_of_modules
import pytest

REPOSITORY = Path(__file__).parents[3]
PYTHON_FILE = re.compile(r"`([\w./]*\w\.py)\b[^`]*`")


PAGE = (REPOSITORY / "docs" / "how-it-works.md").read_text()


def test_every_folder_of_the_data_is_on_the_page() -> None:
    assert [name for name in map_of_modules.ORDER if f"`{name}/`" not in PAGE] == []


def test_every_folder_is_listed_with_a_sentence() -> None:
    listed = dict(line.split("/: ") for line in map_of_modules.folders())
    there = {
        path.parent.relative_to(root).as_posix().replace(".", "dra_driver")
        for root in map_of_modules.ROOTS
        for path in root.rglob("*.py")
        if path.parent.name != map_of_modules.GENERATED
    }
    assert listed.keys() == there
    assert all(listed.values())


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
