"""What a node runs, in numbers: modules and lines of each process, folder by folder.

In: the graph of imports. Out: a table, or with `--held` its end, and status 1 if something is
larger than hack/sizes.yaml allows. A process is the module of its sub-command, the command line,
and all that these import; what only type checkers import does not count. A room is a folder.
Packages' `__init__.py` contain only docstrings and are not counted; code that is generated from the
kubelet's protocols is counted separately.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

import grimp
import yaml
from tracked import tracked

REPOSITORY = Path(__file__).parents[1]
ROOTS = {"dra_driver": REPOSITORY, "resource_nvidia_com": REPOSITORY / "api"}
PROCESSES = {
    "kubelet-plugin": ("dra_driver.node.command", "dra_driver.cli"),
    "mps-supervisor": ("dra_driver.mps.supervisor.command", "dra_driver.cli"),
}
GENERATED = "dra_driver.kubelet.protos"
SIZES = REPOSITORY / "hack/sizes.yaml"


def graph() -> grimp.ImportGraph:
    """Return the graph of imports in this checkout."""
    return grimp.build_graph(*ROOTS, exclude_type_checking_imports=True, cache_dir=None)


def file_of(module: str) -> Path:
    """Return where a module is; a package has no such file."""
    return ROOTS[module.partition(".")[0]].joinpath(*module.split(".")).with_suffix(".py")


def groups(imports: grimp.ImportGraph) -> dict[str, set[str]]:
    """Return the modules of each process, of both together, and of the whole product."""
    sets = {
        process: {*starts}.union(*(imports.find_upstream_modules(start) for start in starts))
        for process, starts in PROCESSES.items()
    }
    sets |= {"both": set().union(*sets.values()), "product": imports.modules}
    return {name: {own for own in all_ if file_of(own).is_file()} for name, all_ in sets.items()}


def room_of(module: str) -> str:
    """Return the package that a module is in."""
    return module.rpartition(".")[0]


def size(modules: Iterable[str]) -> str:
    """Return how many modules and lines these are, as a cell of the table."""
    lines = [file_of(module).read_text().count("\n") for module in modules]
    return f"{len(lines):>7}{sum(lines):>8,}" if lines else " " * 15


def table(columns: dict[str, set[str]]) -> list[str]:
    """Return the rows: a title, one for each room, the sum, and what is generated."""

    def row(label: str, rooms: set[str]) -> str:
        inside = ({own for own in modules if room_of(own) in rooms} for modules in columns.values())
        return "".join((f"{label:<32}", *map(size, inside)))

    rooms = {room_of(module) for module in columns["product"]} - {GENERATED}
    return [
        f"{'modules and lines':<32}" + "".join(f"{name:>15}" for name in columns),
        *(row(room, {room}) for room in sorted(rooms)),
        row("in all", rooms),
        row("generated beside them", {GENERATED}),
    ]


def lines_by_hand(modules: Iterable[str]) -> int:
    """Return how many lines modules have, without generated ones."""
    files = (file_of(module) for module in modules if room_of(module) != GENERATED)
    return sum(file.read_text().count("\n") for file in files)


def lines_below(folder: str) -> int:
    """Return the number of lines of a folder's Python files that git knows or would add."""
    files = tracked(REPOSITORY, f"{folder}/*.py")
    return sum((REPOSITORY / file).read_text().count("\n") for file in files)


def sizes(modules: dict[str, set[str]]) -> dict[str, int]:
    """Return how many lines there are now, by the names in hack/sizes.yaml."""
    return {
        "node": lines_by_hand(modules["both"]),
        "product": lines_by_hand(modules["product"]),
        "hack": lines_below("hack"),
        "tests": lines_below("tests"),
    }


def outgrown(now: dict[str, int], held: dict[str, int]) -> list[str]:
    """Return what has more lines than hack/sizes.yaml allows, for people."""
    return [
        f"{name} has {now[name]:,} lines, and hack/sizes.yaml holds it to {held[name]:,}: take "
        "something out, or raise the number and say in the commit what users get for it"
        for name in now
        if now[name] > held[name]
    ]


def main() -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--held", action="store_true", help="print the sums, and what outgrew them")
    columns = groups(graph())
    rows = table(columns)
    if not parser.parse_args().held:
        print(*rows, sep="\n")
        return 0
    complaints = outgrown(sizes(columns), yaml.safe_load(SIZES.read_text()))
    print(rows[0], *rows[-2:], *complaints, sep="\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    raise SystemExit(main())
