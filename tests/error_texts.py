"""The texts of the driver's errors, read from its source: literal parts, with gaps for values.

A site is a call of a class of errors.py. Its text is the first argument: a string, an f-string,
a name that the function gave one to, or a call of a function of the same module that returns one.
A site whose text comes from elsewhere (`str(error)`) has none of its own.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
GAP = "\0"

LEAST_LETTERS = 8
"""A text with fewer, such as `claim …: …`, says what another one says."""


def letters(text: str) -> int:
    return sum(map(str.isalpha, text))


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where an error is made, and what it may say; gaps stand for values."""

    file: str
    line: int
    error: str
    texts: tuple[str, ...]

    def __str__(self) -> str:
        said = " | ".join(text.replace(GAP, "…") for text in self.texts)
        return f"{self.file}:{self.line}: {self.error}: {said or '(from elsewhere)'}"


def error_classes() -> frozenset[str]:
    tree = ast.parse((REPOSITORY / "dra_driver" / "errors.py").read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.ClassDef))


def sites(*parts: str) -> Iterator[Site]:
    """Yield the sites in modules and packages, by their paths below dra_driver/."""
    names = error_classes()
    for part in parts:
        root = REPOSITORY / "dra_driver" / part
        for path in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            yield from _Module(path, names).sites()


class _Module:
    def __init__(self, path: Path, names: frozenset[str]) -> None:
        self._path, self._names = path, names
        self._tree = ast.parse(path.read_text())
        self._constants = dict(_assigned(self._tree.body))
        self._functions = {
            node.name: node for node in ast.walk(self._tree) if isinstance(node, ast.FunctionDef)
        }

    def sites(self) -> Iterator[Site]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.FunctionDef):
                local = dict(_assigned(ast.walk(node)))
                for call in _own(node):
                    if isinstance(call, ast.Call) and call.args and self._makes_error(call):
                        texts = [
                            text for text in self._texts(call.args[0], local, 3) if _says(text)
                        ]
                        yield Site(
                            file=str(self._path.relative_to(REPOSITORY)),
                            line=call.lineno,
                            error=_called(call) or "one of errors.py",
                            texts=tuple(dict.fromkeys(texts)),
                        )

    def _makes_error(self, call: ast.Call) -> bool:
        """Whether it calls a class of errors.py, or one that is looked up: `CLASSES.get(…)(…)`."""
        match call.func:
            case ast.Call(args=args):
                return any(isinstance(arg, ast.Name) and arg.id in self._names for arg in args)
        return _called(call) in self._names

    def _texts(self, node: ast.expr, local: dict[str, list[ast.expr]], depth: int) -> list[str]:
        """Return what an expression may come to, as far as the source says."""
        found = [GAP]
        match node:
            case _ if depth < 0:
                pass
            case ast.Constant(value=str(text)):
                found = [text]
            case ast.JoinedStr(values=values):
                found = _joined([self._texts(one, local, depth) for one in values])
            case ast.FormattedValue(value=ast.Name() | ast.Call() as value):
                found = self._texts(value, local, depth)
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                found = _joined([self._texts(one, local, depth) for one in (left, right)])
            case ast.IfExp(body=body, orelse=orelse):
                found = [*self._texts(body, local, depth), *self._texts(orelse, local, depth)]
            case ast.Name(id=name):
                values = [*local.get(name, ()), *self._constants.get(name, ())]
                found = [text for one in values for text in self._texts(one, local, depth - 1)]
            case ast.Call():
                found = self._returned(node, depth)
        return found or [GAP]

    def _returned(self, call: ast.Call, depth: int) -> list[str]:
        function = self._functions.get(_called(call))
        if function is None:
            return [GAP]
        local = dict(_assigned(ast.walk(function)))
        return [
            text
            for node in ast.walk(function)
            if isinstance(node, ast.Return) and node.value is not None
            for text in self._texts(node.value, local, depth - 1)
        ] or [GAP]


def _own(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield the nodes of a function but not those of functions in it, which are sites' own."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef):
            waiting += ast.iter_child_nodes(node)


def _assigned(nodes: object) -> Iterator[tuple[str, list[ast.expr]]]:
    found: dict[str, list[ast.expr]] = {}
    for node in nodes:  # type: ignore[attr-defined]
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found.setdefault(name, []).append(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                found.setdefault(name, []).append(value)
    yield from found.items()


def _called(node: ast.AST) -> str:
    match node:
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return name
    return ""


def _joined(parts: list[list[str]]) -> list[str]:
    texts = [""]
    for part in parts:
        texts = [before + after for before in texts for after in part or [GAP]][:64]
    return texts


def _says(text: str) -> bool:
    return letters(text) >= LEAST_LETTERS
