"""Lists the folders of the code by the first lines of their docstrings, or modules by a word.

Without a word it prints every folder; with one, the modules whose path or first line has it.
"""

import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
ROOTS = (REPOSITORY / "dra_driver", REPOSITORY / "api")
GENERATED = "protos"
ORDER = (
    *("devices", "slices", "shares", "kubelet", "claims", "resource_nvidia_com", "sharing", "mps"),
    *("cdi", "kube", "ops", "host", "usage", "node", "admin", "bench", "simulator"),
)
"""Folders in the order in which data passes them; others come afterwards."""


def summary(path: Path) -> str:
    """Return the first line of a module's docstring."""
    with path.open() as file:
        line = file.readline().rstrip()
    return line.strip('"').removesuffix(".") if line.startswith('"""') else ""


def rooms() -> list[tuple[str, Path]]:
    """Return every package with its name on the page, in the order in which data passes them."""
    every = [
        (path.parent.relative_to(root).as_posix(), path.parent)
        for root in ROOTS
        for path in root.rglob("__init__.py")
        if path.parent.name != GENERATED
    ]
    places = {name: place for place, name in enumerate((".", *ORDER))}
    return sorted(every, key=lambda room: (places.get(room[0].partition("/")[0], 99), room[0]))


def modules(folder: Path) -> list[Path]:
    """Return the modules of a package, by name."""
    return sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")


def folders() -> list[str]:
    """Return a line for each folder: its sentence."""
    return [
        f"{'dra_driver' if name == '.' else name}/: {summary(folder / '__init__.py')}"
        for name, folder in rooms()
    ]


def found(word: str) -> list[str]:
    """Return a line for each module whose path or sentence has a word."""
    every = [path for _, folder in rooms() for path in modules(folder)]
    lines = [f"{path.relative_to(REPOSITORY)}: {summary(path)}" for path in every]
    return [line for line in lines if word.lower() in line.lower()]


def main() -> None:
    """Print what the command line asks for."""
    word = " ".join(sys.argv[1:])
    lines = found(word) if word else folders()
    print(*lines or [f"no module has the word {word}"], sep="\n")


if __name__ == "__main__":
    main()
