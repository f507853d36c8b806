"""What `make test` leaves out, by the marker `long`, names a test that shows the statement too."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]


def is_long(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.long"


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def short_tests(path: Path) -> set[str]:
    """The tests of a file that are not left out."""
    of_module = [
        ast.unparse(node.value)
        for node in tree(path).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    if any("pytest.mark.long" in text for text in of_module):
        return set()
    return {
        node.name
        for node in ast.walk(tree(path))
        if (isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))
        or (isinstance(node, ast.ClassDef) and ".TestCase" in "".join(map(ast.unparse, node.bases)))
        if not any(map(is_long, node.decorator_list))
    }


def test_what_is_left_out_is_shown_by_a_test_that_is_not() -> None:
    texts = 0
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "mark.long(" not in path.read_text():
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and is_long(node):
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                assert node.args, f"{where}: no test that shows the same"
                for beside in node.args:
                    assert isinstance(beside, ast.Constant), f"{where}: no text"
                    file, _, name = str(beside.value).partition("::")
                    short = short_tests(ROOT / file)
                    assert short, f"{where}: {file} is left out, too"
                    assert not name or name in short, f"{where}: {name} is not there, or left out"
                    texts += 1
    assert texts > 30
