"""Writes the section "Folders" of docs/how-it-works.md; finds modules by a word.

In: the page, and the first lines of the docstrings of all packages and modules. Out: the page with
the list between its two marks written again, below the folder that stands for the repository's
root; by itself it writes the page in place. `hack/generate` runs it, and compares. With `--find`
it writes nothing, and prints the modules whose path or first line has a word.
"""

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PAGE = Path("docs/how-it-works.md")
BEGIN = "<!-- folders: written by hack/map.py from the first lines of docstrings -->\n"
END = "<!-- end of folders -->\n"
ROOTS = (REPOSITORY / "dra_driver", REPOSITORY / "api")
GENERATED = "protos"
ORDER = (
    *("devices", "slices", "shares", "kubelet", "claims", "resource_nvidia_com", "sharing", "mps"),
    *("cdi", "kube", "ops", "host", "usage", "node", "admin", "simulator"),
)
"""Folders in the order of the data's way; another stands behind them."""


def summary(path: Path) -> str:
    """Return the first line of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.partition("\n")[0].removesuffix(".")


def rooms() -> list[tuple[str, Path]]:
    """Return every package with a name as the page has it, in the order of the data's way."""
    found = [
        (path.parent.relative_to(root).as_posix(), path.parent)
        for root in ROOTS
        for path in root.rglob("__init__.py")
        if path.parent.name != GENERATED
    ]
    places = {name: place for place, name in enumerate((".", *ORDER))}
    return sorted(found, key=lambda room: (places.get(room[0].partition("/")[0], 99), room[0]))


def modules(folder: Path) -> list[Path]:
    """Return the modules of a package, by name."""
    return sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")


def section() -> Iterator[str]:
    """Yield an entry for each room: its sentence."""
    yield "\n"
    for name, folder in rooms():
        title = "dra_driver" if name == "." else name
        yield f"- **`{title}/`** {summary(folder / '__init__.py')}\n"


def found(word: str) -> list[str]:
    """Return a line for each module whose path or sentence has a word."""
    every = [path for _, folder in rooms() for path in modules(folder)]
    lines = [f"{path.relative_to(REPOSITORY)}: {summary(path)}" for path in every]
    return [line for line in lines if word.lower() in line.lower()]


def written(page: str) -> str:
    """Return the page with its list as the docstrings are now."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        sys.exit(f"error: {PAGE} lacks one of its marks: {BEGIN}{END}")
    return "".join((head, BEGIN, *section(), "\n", END, tail))


def main() -> None:
    """Write the page below a folder, or print what was looked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("root", type=Path, nargs="?", default=REPOSITORY)
    parser.add_argument("--find", metavar="WORD", help="print the modules that have this word")
    chosen = parser.parse_args()
    if chosen.find:
        print(*found(chosen.find) or [f"no module has the word {chosen.find}"], sep="\n")
        return
    target = chosen.root / PAGE
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(written((REPOSITORY / PAGE).read_text()))


if __name__ == "__main__":
    main()
