"""Writes the section "Modules" of docs/how-it-works.md: each room's sentence, and each module's.

In: the page, and the first lines of the docstrings of all packages and modules. Out: the page with
its tables written anew between their two marks, below the folder that stands for the repository's
root; by itself it writes the page in place. `hack/generate` runs it, and compares.
"""

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PAGE = Path("docs/how-it-works.md")
BEGIN = "<!-- modules: written by hack/map.py from the first lines of docstrings -->\n"
END = "<!-- end of modules -->\n"
ROOTS = (REPOSITORY / "dra_driver", REPOSITORY / "api")
GENERATED = "protos"
ORDER = (
    *("devices", "slices", "shares", "kubelet", "claims", "resource_nvidia_com", "sharing", "mps"),
    *("cdi", "kube", "ops", "host", "usage", "node", "admin", "simulator"),
)
"""Rooms in the order of the data's way; another stands behind them."""


def summary(path: Path) -> str:
    """Return the first line of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.partition("\n")[0].replace("|", "\\|")


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


def section() -> Iterator[str]:
    """Yield the paragraph and the table of each room."""
    for name, folder in rooms():
        title = "dra_driver" if name == "." else name
        yield f"\n**`{title}/`** {summary(folder / '__init__.py')}\n"
        modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
        if modules:
            yield "\n| module | what it does |\n|---|---|\n"
        for path in modules:
            yield f"| `{path.name}` | {summary(path).removesuffix('.')} |\n"


def written(page: str) -> str:
    """Return the page with its tables as the docstrings are now."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        sys.exit(f"error: {PAGE} lacks one of its marks: {BEGIN}{END}")
    return "".join((head, BEGIN, *section(), "\n", END, tail))


def main() -> None:
    """Write the page below a folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("root", type=Path, nargs="?", default=REPOSITORY)
    target = parser.parse_args().root / PAGE
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(written((REPOSITORY / PAGE).read_text()))


if __name__ == "__main__":
    main()
