"""The texts in Python code: errors, events, help and log lines, without comments and docstrings.

In: a module's source. Out: a text with the same lines, each with the strings that begin on it. What
has no blank in it is a name, and left out. Of a string with fields it has the pieces between them.
"""

import ast


def texts(source: str) -> str:
    """Return the strings of a module, each on the line where it begins."""
    tree = ast.parse(source)
    told = {id(one) for node in ast.walk(tree) for one in _docstrings(node)}
    lines = [""] * (source.count("\n") + 1)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            text = " ".join(node.value.split())
            if " " in text:
                lines[node.lineno - 1] = f"{lines[node.lineno - 1]} {text}".strip()
    return "\n".join(lines)


def _docstrings(node: ast.AST) -> list[ast.Constant]:
    """Return strings that stand by themselves in a body: docstrings, and those of attributes."""
    body = getattr(node, "body", None)
    return [
        one.value
        for one in (body if isinstance(body, list) else ())
        if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
    ]
