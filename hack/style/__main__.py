"""`python hack/style [FILE …]`: vale checks the English of pages, help, alerts and Python code.

It reads strings, docstrings and comments of the product, and docstrings and comments of hack and
tests. They are put into a text with the same lines for each module; code in backticks is left out.
Rules: vale.ini and rules/. vale is compiled once, by hack/cluster.
"""

import ast
import io
import re
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
TEXTS = (
    *("*.md", "changes/*.md", "docs/**/*.md", "manifests/**/*.md", "hack/cluster/README.md"),
    *("tests/data/help/*.txt", "dra_driver/**/*.py", "api/**/*.py", "hack/**/*.py"),
    *("tests/**/*.py", "manifests/alerts.yaml", "manifests/chart/templates/NOTES.txt"),
)
_CODE = re.compile(r"`+[^`]*`+")
_FOR_TOOLS = re.compile(r"#\s*(?:noqa|type:|pragma|fmt:|!)")


def main(words: list[str]) -> int:
    """Print the findings; return vale's status."""
    given = [Path(word).resolve() for word in words]
    found = given or [path for pattern in TEXTS for path in sorted(REPOSITORY.glob(pattern))]
    command = (sys.executable, REPOSITORY / "hack/cluster", "fetch", "vale")
    vale = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()[1]
    with tempfile.TemporaryDirectory(prefix="style.") as scratch:
        for path in (path for path in found if path.parent.name != "protos"):
            _put(path.relative_to(REPOSITORY), path.read_text(), Path(scratch))
        words = [f"{vale}/vale", "--config", str(HERE / "vale.ini"), "--output", "line", "."]
        done = subprocess.run(words, cwd=scratch, stdout=subprocess.PIPE, text=True, check=False)
    print(
        re.sub(r"^(?:remarks/)?(.*?\.(?:py|yaml))\.txt:", r"\1:", done.stdout, flags=re.MULTILINE),
        end="",
    )
    return done.returncode


def _put(path: Path, text: str, folder: Path) -> None:
    """Write the text of a file for vale into a folder."""
    if path.suffix == ".py":
        copies = {folder / "remarks" / f"{path}.txt": remarks(text)}
        if path.parts[0] not in ("hack", "tests"):
            copies[folder / f"{path}.txt"] = strings(text)
    else:
        copies = {folder / (f"{path}.txt" if path.suffix == ".yaml" else path): text}
    for copy, read in copies.items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(read)


def strings(source: str) -> str:
    """Return the strings with a blank, which users read, each on its first line."""
    tree = ast.parse(source)
    told = {id(docstring) for node in ast.walk(tree) for docstring in _docstrings(node)}
    lines = [""] * (source.count("\n") + 1)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            text = " ".join(node.value.split())
            if " " in text:
                lines[node.lineno - 1] = f"{lines[node.lineno - 1]} {text}".strip()
    return "\n".join(lines)


def remarks(source: str) -> str:
    """Return docstrings and comments, line by line."""
    lines = [""] * (source.count("\n") + 1)
    for node in ast.walk(ast.parse(source)):
        for told in _docstrings(node):
            text = _CODE.sub("``", str(told.value))
            for number, line in enumerate(text.split("\n"), told.lineno):
                lines[number - 1] = line.strip()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not _FOR_TOOLS.match(token.string):
            text = _CODE.sub("``", token.string.lstrip("# "))
            lines[token.start[0] - 1] = f"{lines[token.start[0] - 1]} {text}".strip()
    return "\n".join(lines)


def _docstrings(node: ast.AST) -> Iterator[ast.Constant]:
    """Yield the strings that are statements in a body: docstrings, also of attributes."""
    body = getattr(node, "body", None)
    for statement in body if isinstance(body, list) else ():
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            yield statement.value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
