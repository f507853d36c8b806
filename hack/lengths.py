"""Fails when a source file has over 500 lines or a function over 60.

Reads the files git knows or would add. Python functions are measured from `def` to their last
line; C and Go functions from the line of the opening brace in column 0 or at a signature's end to
the closing brace in column 0.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tracked import tracked

FILE_LINES = 500
FUNCTION_LINES = 60
SOURCES = {".py", ".c", ".h", ".go", ".sh", ""}
GENERATED = "dra_driver/kubelet/protos/"


def sources() -> Iterator[Path]:
    """Yield the source files of this checkout."""
    for name in tracked(Path()):
        path = Path(name)
        if path.suffix in SOURCES and not name.startswith(GENERATED):
            text = path.read_text(errors="replace")
            if path.suffix or text.startswith("#!"):
                yield path


def python_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield (name, first line, number of lines) of each Python function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1


def braced_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield (name, first line, number of lines) of each C or Go function."""
    name, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        signature = re.match(r"(?:[A-Za-z_].*?)?\b(\w+)\(", line)
        if signature and not line.startswith((" ", "\t", "#", "}")):
            name, start = signature[1], number
        if line == "}" and start:
            yield name, start, number - start + 1
            start = 0


def main() -> int:
    """Print what is too long; return the exit status."""
    complaints = []
    for path in sources():
        text = path.read_text(errors="replace")
        lines = text.count("\n")
        if lines > FILE_LINES:
            complaints.append(f"{path}: {lines} lines, at most {FILE_LINES}")
        if path.suffix == ".py" or text.startswith(("#!/usr/bin/env python", "#!/usr/bin/python")):
            functions = python_functions(text)
        elif path.suffix in {".c", ".h", ".go"}:
            functions = braced_functions(text)
        else:
            continue
        complaints += [
            f"{path}:{first}: {name} has {length} lines, at most {FUNCTION_LINES}"
            for name, first, length in functions
            if length > FUNCTION_LINES
        ]
    print("\n".join(complaints), end="\n" if complaints else "", file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
