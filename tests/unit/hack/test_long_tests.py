"""What `make test` leaves out, by the marker `long`, names a test that shows the statement too."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def is_long(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.long"


def marks() -> Iterator[tuple[str, str]]:
    """Each text of each use of the marker: where it stands, and the text."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and is_long(node):
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                assert node.args, f"{where}: no test that shows the same"
                for beside in node.args:
                    assert isinstance(beside, ast.Constant), f"{where}: no text"
                    yield where, str(beside.value)


MARKS = list(marks())


@pytest.mark.parametrize(("where", "beside"), MARKS, ids=[where for where, _ in MARKS])
def test_what_is_left_out_is_shown_by_a_test_that_is_not(where: str, beside: str) -> None:
    path, _, name = beside.partition("::")
    module = ast.parse((ROOT / path).read_text())
    tests = {
        node.name: node
        for node in ast.walk(module)
        if (isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))
        or (isinstance(node, ast.ClassDef) and ".TestCase" in "".join(map(ast.unparse, node.bases)))
    }
    of_module = [
        ast.unparse(node.value)
        for node in module.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    assert not any("pytest.mark.long" in text for text in of_module), f"{path} is left out, too"
    short = {name for name, node in tests.items() if not any(map(is_long, node.decorator_list))}
    assert short, f"{path} is left out, too"
    assert not name or name in short, f"{beside} is not there, or left out, too"


def test_there_are_such_marks() -> None:
    assert len(MARKS) > 50
