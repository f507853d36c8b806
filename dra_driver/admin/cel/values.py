"""The values of CEL, and what can go wrong with them.

Ints, strings, bools, lists, maps and null are those of Python; other types are defined
here. Rules: numbers compare across their types; other values of different types are not equal,
except that a version or quantity on the left is an error (as in Kubernetes' own types). Pure.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass  # noqa: TID251 (total_ordering adds nothing to a struct)
from functools import total_ordering
from typing import Self

from msgspec import Struct

from resource_nvidia_com.quantity import Quantity


class EvaluationError(Exception):
    """An error of CEL itself: the scheduler gives up on a claim because of it."""


class AbortError(EvaluationError):
    """An error that also ends `||` and `&&`: one of cel-go's own."""


class NotUnderstoodError(Exception):
    """CEL that is not known here, so the scheduler's result is unknown."""


class NotCelError(NotUnderstoodError):
    """Text that is not CEL: every API server refuses it."""


class Uint(int):
    """An unsigned integer."""


class Double(float):
    """A floating point number."""


class Fine(Quantity):
    """A quantity with a fraction in it, as written or summed, although its value may be whole.

    Whether apimachinery treats it as an integer depends on how it is stored, not on the value.
    """


_SEMVER = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
)


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Semver:
    """A semantic version. Comparisons ignore its build metadata."""

    numbers: tuple[int, int, int]
    before: tuple[str, ...]
    text: str

    @classmethod
    def parse(cls, text: str, *, normalize: bool = False) -> Self:
        """Read a version; `normalize` reads `v1.02` as 1.2.0. Raises ValueError."""
        if normalize:
            text = _normalized(text)
        match = _SEMVER.fullmatch(text)
        before = tuple(match[4].split(".")) if match and match[4] else ()
        if match is None or any(re.fullmatch("0[0-9]+", part) for part in before):
            raise ValueError(f"{text!r} is not a semantic version")
        return cls((int(match[1]), int(match[2]), int(match[3])), before, text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Semver) and self._key() == other._key()

    def __lt__(self, other: "Semver") -> bool:
        return self._key() < other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        return self.text

    def _key(self) -> tuple[object, ...]:
        parts = tuple(
            (0, int(part), "") if part.isdecimal() else (1, 0, part) for part in self.before
        )
        return (*self.numbers, not self.before, parts)


def _normalized(text: str) -> str:
    parts = text.removeprefix("v").split(".", 2)
    for number, part in enumerate(parts):
        if len(part) > 1:
            rest = part.lstrip("0")
            parts[number] = rest if rest[:1].isdecimal() else f"0{rest}"
    if len(parts) < 3 and re.search("[+-]", parts[-1]):
        raise ValueError(f"{text!r} is not a semantic version")
    return ".".join([*parts, "0", "0"][:3])


class Optional(Struct, frozen=True):
    """A value that may be missing."""

    value: object = None
    is_there: bool = False


NONE = Optional()


class Defaulting(dict[str, object]):
    """A map with an empty map for every missing key: attributes and capacities by domain."""

    def __missing__(self, key: str) -> object:
        return {}


class TypeOf(Struct, frozen=True):
    """A type, as `type(value)` returns it or as a type's name refers to it."""

    name: str


_NAMES: Mapping[type, str] = {
    bool: "bool",
    Uint: "uint",
    int: "int",
    Double: "double",
    str: "string",
    list: "list",
    dict: "map",
    Defaulting: "map",
    Semver: "kubernetes.Semver",
    Quantity: "kubernetes.Quantity",
    Fine: "kubernetes.Quantity",
    Optional: "optional_type",
    TypeOf: "type",
    type(None): "null_type",
}
TYPES = frozenset(_NAMES.values())


def type_name(value: object) -> str:
    """Return what CEL calls the type of a value."""
    return _NAMES[type(value)]


def is_number(value: object) -> bool:
    """Tell whether this is an int, a uint or a double."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def no_overload() -> EvaluationError:
    """Return CEL's error for types that do not fit together."""
    return EvaluationError("no such overload")


def need(value: object, *kinds: type) -> None:
    """Raise EvaluationError unless a value is of one of these types."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise no_overload()


def equal(left: object, right: object) -> bool:
    """Tell whether two values are equal. Raises EvaluationError if CEL has no answer."""
    if isinstance(left, Quantity) and isinstance(right, Quantity):
        left, right = left.nanos, right.nanos
    if is_number(left) and is_number(right):
        return left == right
    if isinstance(left, Semver | Quantity) and type(left) is not type(right):
        raise no_overload()
    if isinstance(left, dict) and isinstance(right, dict):
        return len(left) == len(right) and all(
            key in right and equal(value, right[key]) for key, value in left.items()
        )
    if type(left) is not type(right):
        return False
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, Optional) and isinstance(right, Optional):
        return left.is_there == right.is_there and (
            not left.is_there or equal(left.value, right.value)
        )
    return left == right
