"""What of a slice's spec is not as it was asked for.

In: two specs as dicts, what we asked and what the API server has. Out: paths of what is missing,
changed or added. Rules: the API server silently drops fields of disabled features, and writes
quantities in its own canonical form, so they are compared by value. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeGuard

from resource_nvidia_com.quantity import Quantity

Path = tuple[str | int, ...]


class Kind(StrEnum):
    """How a field differs from what was asked."""

    DROPPED = "dropped"
    CHANGED = "changed"
    ADDED = "added"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field that is not as asked; `path` begins below `spec`."""

    kind: Kind
    path: Path

    def __str__(self) -> str:
        where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.path)
        return f"spec{where} {self.kind}"


_QUANTITIES = frozenset({"capacity", "counters"})
"""Below these keys every string that both sides can read as a quantity is one."""


def differences(asked: object, actual: object, path: Path = ()) -> Iterator[Difference]:
    """Yield each field of `actual` that is not as in `asked`, depth first and in a fixed order.

    An empty list or map equals an absent one, as in Go's omitempty.
    """
    if isinstance(asked, Mapping) and isinstance(actual, Mapping):
        for key in sorted({*asked, *actual}, key=str):
            yield from _field(asked.get(key), actual.get(key), (*path, key))
    elif _is_list(asked) and _is_list(actual):
        if len(asked) != len(actual):
            yield Difference(kind=Kind.CHANGED, path=path)
            return
        for index, (one, other) in enumerate(zip(asked, actual, strict=True)):
            yield from differences(one, other, (*path, index))
    elif not _same_value(asked, actual, path):
        yield Difference(kind=Kind.CHANGED, path=path)


def _field(asked: object, actual: object, path: Path) -> Iterator[Difference]:
    if _is_empty(asked) and _is_empty(actual):
        return
    if _is_empty(actual):
        yield Difference(kind=Kind.DROPPED, path=path)
    elif _is_empty(asked):
        yield Difference(kind=Kind.ADDED, path=path)
    else:
        yield from differences(asked, actual, path)


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, Mapping | list | tuple) and not value)


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _same_value(asked: object, actual: object, path: Path) -> bool:
    if type(asked) is type(actual) and asked == actual:
        return True
    if not (isinstance(asked, str) and isinstance(actual, str)):
        return False
    if _QUANTITIES.isdisjoint(path):
        return False
    try:
        return Quantity.parse(asked) == Quantity.parse(actual)
    except ValueError:
        return False
