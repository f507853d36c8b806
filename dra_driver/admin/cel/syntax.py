"""What a CEL expression is made of: one frozen value for each node, with its place in the text.

Macros are nodes too: `has`, the comprehensions, `cel.bind` and `optMap`. So code that explains why
an expression is false can refer to what its author wrote. Pure.
"""

from typing import Literal as OneOf

from msgspec import Struct


class Node(Struct, frozen=True):
    """A part of an expression; it begins at `start` in its text and ends before `end`."""

    start: int
    end: int


class Constant(Node, frozen=True):
    """A literal."""

    value: object


class Name(Node, frozen=True):
    """A variable."""

    name: str


class Select(Node, frozen=True):
    """`operand.field`, or with `optional` `operand.?field`."""

    operand: Node
    field: str
    optional: bool = False


class Has(Node, frozen=True):
    """`has(operand.field)`."""

    operand: Node
    field: str


class Index(Node, frozen=True):
    """`operand[key]`, or with `optional` `operand[?key]`."""

    operand: Node
    key: Node
    optional: bool = False


class Call(Node, frozen=True):
    """`function(arguments)`, or `target.function(arguments)`."""

    function: str
    target: Node | None
    arguments: tuple[Node, ...]


class ListOf(Node, frozen=True):
    """`[items]`."""

    items: tuple[Node, ...]


class MapOf(Node, frozen=True):
    """`{key: value}`."""

    entries: tuple[tuple[Node, Node], ...]


class Unary(Node, frozen=True):
    """`!operand` or `-operand`."""

    operator: str
    operand: Node


class Binary(Node, frozen=True):
    """A comparison or arithmetic."""

    operator: str
    left: Node
    right: Node


class Logic(Node, frozen=True):
    """All terms of `a && b && c`, or of `a || b || c`."""

    operator: OneOf["&&", "||"]
    terms: tuple[Node, ...]


class Choice(Node, frozen=True):
    """`condition ? then : otherwise`."""

    condition: Node
    then: Node
    otherwise: Node


class Comprehension(Node, frozen=True):
    """`over.kind(variable, predicate)`; `map` may have a predicate, and always has a `result`."""

    kind: OneOf["all", "exists", "exists_one", "filter", "map"]
    over: Node
    variable: str
    predicate: Node | None
    result: Node | None = None


class Bind(Node, frozen=True):
    """`cel.bind(variable, value, body)`."""

    variable: str
    value: Node
    body: Node


class OptionalMap(Node, frozen=True):
    """`target.optMap(variable, result)`, or `optFlatMap`, of which the result is optional."""

    target: Node
    variable: str
    result: Node
    flat: bool
