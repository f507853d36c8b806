"""docs/how-it-works.md names every module once, and every page names only files that are there."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
MAP = REPOSITORY / "docs" / "how-it-works.md"
ROOTS = (REPOSITORY / "dra_driver", REPOSITORY / "api")
GENERATED = "kubelet/protos/"
ROW = re.compile(r"^\| *`([\w./]+\.py)` *\|")
PYTHON_FILE = re.compile(r"`([\w./]*\w\.py)\b[^`]*`")


def modules() -> dict[str, Path]:
    """Every module that the map has to name, by its path below its root."""
    found = {
        path.relative_to(root).as_posix(): path for root in ROOTS for path in root.rglob("*.py")
    }
    return {
        name: path
        for name, path in sorted(found.items())
        if path.name != "__init__.py" and not name.startswith(GENERATED)
    }


def rows() -> dict[str, list[int]]:
    """The lines of the map's module tables on which a module has its row."""
    found = defaultdict(list)
    for number, line in enumerate(MAP.read_text().splitlines(), start=1):
        if match := ROW.match(line):
            found[match[1]].append(number)
    return found


def new_row(name: str, path: Path, mapped: dict[str, list[int]]) -> str:
    """Say where the row of a module belongs, and print it ready to be pasted."""
    folder = name.rpartition("/")[0]
    beside = [lines[0] for other, lines in mapped.items() if other.rpartition("/")[0] == folder]
    place = f"into the table at line {min(beside)}" if beside else "into a table of its own"
    summary = (ast.get_docstring(ast.parse(path.read_text())) or "?").partition("\n")[0]
    summary = summary.rstrip(".").replace("|", "\\|")
    return (
        f"{path.relative_to(REPOSITORY)} has no row. Add it {place}, where the data passes it:\n"
        f"    | `{name}` | {summary} |"
    )


def complaints() -> list[str]:
    there, mapped = modules(), rows()
    return [
        *(new_row(name, path, mapped) for name, path in there.items() if name not in mapped),
        *(
            f"line {lines[0]}: there is no module `{name}`. Delete its row, or rename it"
            for name, lines in mapped.items()
            if name not in there
        ),
        *(
            f"lines {', '.join(map(str, lines))}: `{name}` has several rows. Keep one"
            for name, lines in mapped.items()
            if len(lines) > 1
        ),
    ]


def test_the_map_names_every_module_exactly_once() -> None:
    if found := complaints():
        page = MAP.relative_to(REPOSITORY)
        pytest.fail("\n".join([f"Mend {page}:", *found]), pytrace=False)


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
        if not (page == MAP and ROW.match(line))  # the test above speaks of these
        for name in PYTHON_FILE.findall(line)
        if not any(path.endswith(f"/{name}") for path in there)
    ]
    if stale:
        pytest.fail("\n".join(stale), pytrace=False)
