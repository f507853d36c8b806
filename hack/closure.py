"""What a node runs, in numbers: modules and lines of each process, room by room.

In: the graph of imports. Out: a table, or with `--total` its end. A process is the module of its
sub-command, the command line, and all that these import; what only type checkers import does not
count. A room is a folder. Packages' `__init__.py` hold a docstring each and are not counted; code
that is generated from the kubelet's protocols is counted apart.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

import grimp

REPOSITORY = Path(__file__).parents[1]
ROOTS = {"dra_driver": REPOSITORY, "resource_nvidia_com": REPOSITORY / "api"}
PROCESSES = {
    "kubelet-plugin": ("dra_driver.node.command", "dra_driver.cli"),
    "mps-supervisor": ("dra_driver.mps.supervisor.command", "dra_driver.cli"),
}
GENERATED = "dra_driver.kubelet.protos"


def graph() -> grimp.ImportGraph:
    """Return who imports whom in this checkout."""
    return grimp.build_graph(*ROOTS, exclude_type_checking_imports=True, cache_dir=None)


def file_of(module: str) -> Path:
    """Return where a module is; a package has no such file."""
    return ROOTS[module.partition(".")[0]].joinpath(*module.split(".")).with_suffix(".py")


def groups(imports: grimp.ImportGraph) -> dict[str, set[str]]:
    """Return the modules of each process, of both together, and of the whole product."""
    found = {
        process: {*starts}.union(*(imports.find_upstream_modules(start) for start in starts))
        for process, starts in PROCESSES.items()
    }
    found |= {"both": set().union(*found.values()), "product": imports.modules}
    return {name: {one for one in all_ if file_of(one).is_file()} for name, all_ in found.items()}


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
        inside = ({one for one in modules if room_of(one) in rooms} for modules in columns.values())
        return "".join((f"{label:<32}", *map(size, inside)))

    rooms = {room_of(module) for module in columns["product"]} - {GENERATED}
    return [
        f"{'modules and lines':<32}" + "".join(f"{name:>15}" for name in columns),
        *(row(room, {room}) for room in sorted(rooms)),
        row("in all", rooms),
        row("generated beside them", {GENERATED}),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--total", action="store_true", help="print the sums alone")
    rows = table(groups(graph()))
    print(*([rows[0], *rows[-2:]] if parser.parse_args().total else rows), sep="\n")


if __name__ == "__main__":
    main()
