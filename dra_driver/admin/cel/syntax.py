"""What a CEL expression is made of: one frozen value for each node, with its place in the text.

Macros are nodes too: `has`, the comprehensions, `cel.bind` and `optMap`. So code that says why an
expression is false can speak of what its author wrote. Pure.
"""

from dataclasses import dataclass
from typing import Literal as OneOf


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A part of an expression; it begins at `start` in its text and ends before `end`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant(Node):
    """A literal."""

    value: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Name(Node):
    """A variable."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Select(Node):
    """`operand.field`, or with `optional` `operand.?field`."""

    operand: Node
    field: str
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Has(Node):
    """`has(operand.field)`."""

    operand: Node
    field: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Index(Node):
    """`operand[key]`, or with `optional` `operand[?key]`."""

    operand: Node
    key: Node
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Node):
    """`function(arguments)`, or `target.function(arguments)`."""

    function: str
    target: Node | None
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOf(Node):
    """`[items]`."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MapOf(Node):
    """`{key: value}`."""

    entries: tuple[tuple[Node, Node], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unary(Node):
    """`!operand` or `-operand`."""

    operator: str
    operand: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary(Node):
    """A comparison or arithmetic."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Logic(Node):
    """All terms of `a && b && c`, or of `a || b || c`."""

    operator: OneOf["&&", "||"]
    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Node):
    """`condition ? then : otherwise`."""

    condition: Node
    then: Node
    otherwise: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Comprehension(Node):
    """`over.kind(variable, predicate)`; `map` may have a predicate, and always has a `result`."""

    kind: OneOf["all", "exists", "exists_one", "filter", "map"]
    over: Node
    variable: str
    predicate: Node | None
    result: Node | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind(Node):
    """`cel.bind(variable, value, body)`."""

    variable: str
    value: Node
    body: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionalMap(Node):
    """`target.optMap(variable, result)`, or `optFlatMap`, of which the result is optional."""

    target: Node
    variable: str
    result: Node
    flat: bool
