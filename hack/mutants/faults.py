"""Small faults for a module: a condition turned round, an argument dropped, a call left out.

In: a module's text. Out: its mutants, each with the lines that a test has to run to notice it, and
the whole text with this one fault. Most operators are mutmut's. Annotations, decorators, imports
and texts of log lines are left alone, because no test should notice changes there.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators, operator_string

_QUIET = (
    m.Annotation()
    | m.Decorator()
    | m.Import()
    | m.ImportFrom()
    | m.Call(func=m.Attribute(value=m.Name("log") | m.Attribute(attr=m.Name("_log"))))
    | m.Call(func=m.Name("assert_never") | m.Name("TypeVar") | m.Name("NewType") | m.Name("cast"))
    # Code that checks that two lists have the same length is no branch of its own.
    | m.Arg(keyword=m.Name("strict"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One fault. Its key names it as long as the module's text stays the same."""

    key: str
    lot: str
    """Decides whether it is drawn: the same while its statement is the same, at any place."""
    module: str
    line: int
    last: int
    """A test that runs none of the lines from `line` to this one cannot notice it."""
    old: cst.CSTNode | str
    new: cst.CSTNode | str
    fault: str = ""
    """What is wrong, if a person wrote the fault."""


def _left_out(node: cst.Expr) -> Iterable[cst.CSTNode]:
    """A call whose result is not used, left out."""
    if isinstance(node.value, cst.Call) and not m.matches(node.value, _QUIET):
        yield cst.Pass()


def _not_raised(_: cst.Raise) -> Iterable[cst.CSTNode]:
    yield cst.Pass()


def _turned_round(node: cst.If | cst.While) -> Iterable[cst.CSTNode]:
    """A condition that is no comparison, because other operators negate those."""
    if isinstance(node.test, cst.Name | cst.Attribute | cst.Call | cst.NamedExpr):
        test = cst.parse_expression(f"not ({cst.Module([]).code_for_node(node.test)})")
        yield node.with_changes(test=test)


def _misspelt(node: cst.BaseString) -> Iterable[cst.CSTNode]:
    """The first of mutmut's three variants: a test that notices one notices all."""
    yield from list(operator_string(node))[:1]


_Operator = tuple[type, Callable[[Any], Iterable[cst.CSTNode]]]

OPERATORS: tuple[_Operator, ...] = (
    (cst.Expr, _left_out),
    (cst.Raise, _not_raised),
    (cst.If, _turned_round),
    (cst.While, _turned_round),
    (cst.BaseString, _misspelt),
    *(operator for operator in mutation_operators if operator[1] is not operator_string),
)


class Module:
    """A module's text, and its mutants."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self._tree = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        self._digest = sha256(text.encode()).hexdigest()[:10]

    def mutants(self) -> list[Mutant]:
        """Return all mutants, in the order of the text."""
        visitor = _Visitor()
        self._tree.visit(visitor)
        alike = Counter[str]()
        return [
            Mutant(
                key=f"{self.name}:{self._digest}:{self._named(old, new)}",
                lot=self._lot(line, last, old, new, alike),
                module=self.name,
                line=line,
                last=last,
                old=old,
                new=new,
            )
            for line, last, old, new in visitor.found
        ]

    def _named(self, old: cst.CSTNode, new: cst.CSTNode) -> str:
        place = self._tree.resolve(PositionProvider)[old]
        code = self._tree.module.code_for_node(new)
        return sha256(f"{place.start} {place.end} {code}".encode()).hexdigest()[:12]

    def _lot(
        self, line: int, last: int, old: cst.CSTNode, new: cst.CSTNode, alike: Counter[str]
    ) -> str:
        statement = "\n".join(text.strip() for text in self.text.splitlines()[line - 1 : last])
        before, after = (self._tree.module.code_for_node(node) for node in (old, new))
        words = f"{self.name}\0{statement}\0{before}\0{after}"
        alike[words] += 1
        return f"{words}\0{alike[words]}"

    def mutated(self, mutant: Mutant) -> str:
        """Return the whole text with one fault."""
        if isinstance(mutant.old, str) or isinstance(mutant.new, str):
            return self.text.replace(str(mutant.old), str(mutant.new))
        changed = self._tree.module.deep_replace(mutant.old, mutant.new)
        assert isinstance(changed, cst.Module)  # noqa: S101
        return changed.code


class _Visitor(cst.CSTVisitor):
    """Collects the operators' results for each node; knows in which statement it is."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, int, cst.CSTNode, cst.CSTNode]] = []
        self._statements: list[int] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if m.matches(node, _QUIET):
            return False
        place = self.get_metadata(PositionProvider, node, None)
        if isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement) and place:
            self._statements.append(place.start.line)
        if place and self._statements:
            last = self._header_end(node) or place.end.line
            line = self._statements[-1]
            self.found += [(line, last, node, changed) for changed in _changes(node)]
        return True

    def _header_end(self, node: cst.CSTNode) -> int | None:
        """Return where a statement's condition ends, if it has one: its body may not run at all."""
        if not isinstance(node, cst.If | cst.While):
            return None
        return self.get_metadata(PositionProvider, node.test).end.line

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if isinstance(original_node, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            place = self.get_metadata(PositionProvider, original_node, None)
            if place and not m.matches(original_node, _QUIET):
                self._statements.pop()


def _changes(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for kind, operator in OPERATORS:
        if isinstance(node, kind):
            yield from operator(node)


def difference(before: str, after: str) -> Sequence[str]:
    """Return the lines that a fault changed: without it, and with it."""
    old, new = before.splitlines(), after.splitlines()
    shorter = min(len(old), len(new))
    same = next((place for place in range(shorter) if old[place] != new[place]), shorter)
    left, right = old[same:], new[same:]
    while left and right and left[-1] == right[-1]:
        left.pop()
        right.pop()
    return [f"- {line.strip()}" for line in left] + [f"+ {line.strip()}" for line in right]
