"""A selector of devices: whether it selects one, and if not, why.

In: the text of a selector, and a published device. Out: whether it selects the device; otherwise
the smallest parts of the text that make it false, each with the attributes that it reads and their
values. As in KEP-4381, names without a domain have that of the driver; a domain of which the device
has nothing is an empty map, and reading a missing key of a map is an error. Pure.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache

from msgspec import Struct

from dra_driver.admin.cel import syntax
from dra_driver.admin.cel.evaluate import Variables, value_of
from dra_driver.admin.cel.parser import parsed
from dra_driver.admin.cel.values import (
    Defaulting,
    EvaluationError,
    NotUnderstoodError,
    Optional,
    type_name,
)
from resource_nvidia_com.quantity import Quantity

_READ = frozenset({"attributes", "capacity"})
_SHOWN = 60
"""How many characters of a value are shown."""


class Subject(Struct, frozen=True, kw_only=True):
    """What a selector can read of a device, by qualified names; `attributes` are CEL values."""

    driver: str
    attributes: Mapping[str, object] = {}
    capacity: Mapping[str, Quantity] = {}
    allows_multiple: bool = False

    def variables(self) -> Variables:
        """Return the value of `device` in an expression."""
        return {
            "device": {
                "driver": self.driver,
                "attributes": self._by_domain(self.attributes),
                "capacity": self._by_domain(self.capacity),
                "allowMultipleAllocations": self.allows_multiple,
            }
        }

    def _by_domain(self, named: Mapping[str, object]) -> Defaulting:
        domains: dict[str, dict[str, object]] = {}
        for qualified, value in named.items():
            domain, _, name = qualified.rpartition("/")
            domains.setdefault(domain or self.driver, {})[name] = value
        return Defaulting(domains)


class Fault(Struct, frozen=True, kw_only=True):
    """A part of a selector that does not hold.

    Attributes:
        text: the part, as its author wrote it; with a `not` before it where it ought to be false.
        reads: the attributes and capacities in it, and their values; None for one that is missing.
    """

    text: str
    reads: tuple[tuple[str, str | None], ...]


class Selector(Struct, frozen=True):
    """A selector's text, and its tree."""

    text: str
    tree: syntax.Node

    @classmethod
    def of(cls, text: str) -> "Selector":
        """Parse a selector. Raises NotUnderstoodError if it uses CEL that is not known here."""
        return cls(text, _tree(text))

    def selects(self, subject: Subject) -> bool:
        """Tell whether it selects a device.

        Raises EvaluationError if it has no value (the scheduler gives up), or NotUnderstoodError.
        """
        answer = value_of(self.tree, subject.variables())
        if not isinstance(answer, bool):
            raise EvaluationError(f"CEL result of type {type_name(answer)} is not a bool")
        return answer

    def faults(self, subject: Subject) -> tuple[Fault, ...]:
        """Return what makes it false, or where it fails."""
        search = _Faults(self.text, subject)
        faults = search.of(self.tree, search.scope, wanted=True)
        return tuple(dict.fromkeys(faults))


@lru_cache(maxsize=256)
def _tree(text: str) -> syntax.Node:
    try:
        return parsed(text)
    except RecursionError:
        raise NotUnderstoodError("an expression nested so deeply") from None


class _Scope(Struct, frozen=True):
    """The variables, and the parts of the device that those of `cel.bind` stand for."""

    variables: Variables
    paths: Mapping[str, tuple[str, ...]]


class _Faults:
    """Finds what makes an expression differ from its wanted value."""

    def __init__(self, text: str, subject: Subject) -> None:
        self._text = text
        self._subject = subject
        self.scope = _Scope(subject.variables(), {"device": ()})

    def of(self, node: syntax.Node, scope: _Scope, *, wanted: bool) -> Iterator[Fault]:
        match node:
            case syntax.Logic() if (node.operator == "&&") == wanted:
                # One false term is enough, so each of them is at fault.
                for term in node.terms:
                    if self._value(term, scope) is not wanted:
                        yield from self.of(term, scope, wanted=wanted)
            case syntax.Logic():
                for term in node.terms:
                    yield from self.of(term, scope, wanted=wanted)
            case syntax.Unary(operator="!"):
                yield from self.of(node.operand, scope, wanted=not wanted)
            case syntax.Choice():
                yield from self._of_choice(node, scope, wanted=wanted)
            case syntax.Bind():
                value = self._value(node.value, scope)
                path = _path(node.value, scope)
                inner = _Scope(
                    {**scope.variables, node.variable: value},
                    {**scope.paths, node.variable: path} if path is not None else scope.paths,
                )
                yield from self.of(node.body, inner, wanted=wanted)
            case _:
                yield self._fault(node, scope, wanted=wanted)

    def _of_choice(self, node: syntax.Choice, scope: _Scope, *, wanted: bool) -> Iterator[Fault]:
        condition = self._value(node.condition, scope)
        if not isinstance(condition, bool):
            yield from self.of(node.condition, scope, wanted=True)
            return
        branch = node.then if condition else node.otherwise
        if isinstance(branch, syntax.Constant):
            yield from self.of(node.condition, scope, wanted=not condition)
        else:
            yield from self.of(branch, scope, wanted=wanted)

    def _value(self, node: syntax.Node, scope: _Scope) -> object:
        try:
            return value_of(node, scope.variables)
        except (EvaluationError, NotUnderstoodError):
            return None

    def _fault(self, node: syntax.Node, scope: _Scope, *, wanted: bool) -> Fault:
        text = " ".join(self._text[node.start : node.end].split())
        reads = dict.fromkeys(_reads(node, scope))
        return Fault(
            text=text if wanted else f"!({text})",
            reads=tuple((_named(path), self._shown(path)) for path in reads),
        )

    def _shown(self, path: tuple[str, ...]) -> str | None:
        value: object = self.scope.variables["device"]
        for key in path:
            if not isinstance(value, dict) or key not in value:
                return None
            value = value[key]
        return shown(value)


def _reads(node: syntax.Node, scope: _Scope) -> Iterator[tuple[str, ...]]:
    """Yield the paths below `device` that an expression reads."""
    path = _path(node, scope)
    if path:
        yield path
        return
    for part in _parts(node):
        yield from _reads(part, scope)


def _path(node: syntax.Node, scope: _Scope) -> tuple[str, ...] | None:
    """Return which part of the device an expression is, by the keys that lead to it."""
    match node:
        case syntax.Name() if node.name in scope.paths:
            return scope.paths[node.name]
        case syntax.Select() | syntax.Has():
            holder = _path(node.operand, scope)
            return None if holder is None else (*holder, node.field)
        case syntax.Index(key=syntax.Constant(value=str() as key)):
            holder = _path(node.operand, scope)
            return None if holder is None else (*holder, key)
        case syntax.Binary(operator="in", left=syntax.Constant(value=str() as key)):
            # Selectors also ask in this way whether an attribute exists.
            holder = _path(node.right, scope)
            is_map = holder is not None and len(holder) == 2 and holder[0] in _READ
            return (*holder, key) if holder is not None and is_map else None
        case _:
            return None


def _parts(node: syntax.Node) -> Iterator[syntax.Node]:
    for name in node.__struct_fields__:
        value = getattr(node, name)
        for parts in value if isinstance(value, tuple) else (value,):
            for part in parts if isinstance(parts, tuple) else (parts,):
                if isinstance(part, syntax.Node):
                    yield part


def _named(path: tuple[str, ...]) -> str:
    """Return how people write it: `gpu.nvidia.com/type`, `gpu.nvidia.com/memory`, `driver`."""
    if path[0] in _READ and len(path) > 1:
        return "/".join(path[1:])
    return ".".join(path)


def shown(value: object) -> str:
    """Return a value for people, on one short line."""
    match value:
        case bool():
            text = str(value).lower()
        case str():
            text = f'"{value}"'
        case list():
            text = f"[{', '.join(map(shown, value))}]"
        case dict():
            text = f"({len(value)} entries)"
        case Optional():
            text = shown(value.value) if value.is_there else "nothing"
        case _:
            text = str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
