"""The English in Python code: errors, events, help and log lines; docstrings and comments.

In: a module's source. Out: a text with the same lines, each with the strings that begin on it. A
string without a blank is a name, and left out; an f-string gives the pieces between its fields.
Code in backticks is left out.
"""

import ast
import io
import re
import tokenize

_CODE = re.compile(r"`+[^`]*`+")
_FOR_TOOLS = re.compile(r"#\s*(?:noqa|type:|pragma|fmt:|!)")


def texts(source: str) -> str:
    """Return what users read of a module: its strings, each on its first line."""
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
    """Return what readers of the code read: docstrings and comments, line by line."""
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


def _docstrings(node: ast.AST) -> list[ast.Constant]:
    """Return the strings that are statements in a body: docstrings, also of attributes."""
    body = getattr(node, "body", None)
    return [
        statement.value
        for statement in (body if isinstance(body, list) else ())
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    ]
