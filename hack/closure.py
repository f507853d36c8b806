"""Limits the size of the code: of a node, the product, hack, tests, each file and function.

In: the graph of imports, and the files that git knows or would add. Out: the sums, and status 1 if
one is larger than hack/sizes.yaml allows, or a file or a Python function is too long. A process is
the module of its sub-command, the command line, and all that these import; what only type checkers
import does not count, nor does code that is generated from the kubelet's protocols.
"""

import ast
from collections.abc import Iterable, Iterator
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
FILE_LINES, FUNCTION_LINES = 500, 60
SOURCES = {".py", ".c", ".h", ".go", ".sh", ""}


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


def _lines(files: Iterable[Path]) -> int:
    return sum(file.read_text().count("\n") for file in files)


def sizes(modules: dict[str, set[str]]) -> dict[str, int]:
    """Return how many lines there are now, by the names in hack/sizes.yaml."""
    by_hand = {
        name: [file_of(own) for own in every if not own.startswith(f"{GENERATED}.")]
        for name, every in modules.items()
    }
    below = {
        folder: [REPOSITORY / file for file in tracked(REPOSITORY, f"{folder}/*.py")]
        for folder in ("hack", "tests")
    }
    of_each = {"node": by_hand["both"], "product": by_hand["product"], **below}
    return {name: _lines(files) for name, files in of_each.items()}


def too_long() -> Iterator[str]:
    """Yield a complaint about each file and function that is too long."""
    for name in tracked(REPOSITORY):
        path = REPOSITORY / name
        text = path.read_text(errors="replace") if path.suffix in SOURCES else ""
        if name.startswith(GENERATED.replace(".", "/")) or not (path.suffix or text[:2] == "#!"):
            continue
        if (lines := text.count("\n")) > FILE_LINES:
            yield f"{name}: {lines} lines, at most {FILE_LINES}"
        for node in ast.walk(ast.parse(text if path.suffix == ".py" else "")):
            if isinstance(node, ast.FunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > FUNCTION_LINES:
                    yield f"{name}:{node.lineno}: {length} lines, at most {FUNCTION_LINES}"


def main() -> int:
    """Print the sums, and what is too large; return the exit status."""
    held = yaml.safe_load(SIZES.read_text())
    now = sizes(groups(graph()))
    complaints = [
        f"{name} has {now[name]:,} lines, and hack/sizes.yaml holds it to {held[name]:,}: take "
        "something out, or raise the number and say in the commit what users get for it"
        for name in now
        if now[name] > held[name]
    ] + [*too_long()]
    print(*(f"{name}: {lines:,} lines" for name, lines in now.items()), *complaints, sep="\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    raise SystemExit(main())
