"""What hostile bytes and values look like, for the tests that feed them to everything.

Values are drawn as JSON can carry them: also NaN and infinite numbers, numbers too large for any
field, and halves of surrogate pairs.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from hypothesis import strategies as st

from dra_driver.errors import DriverError

T = TypeVar("T")

ODD_TEXTS = [
    "", ".", "..", "../../etc/passwd", "/", "a" * 5000, "\0", "\n", "\x1b[2J", "\ud800", "\udcff",
    "🦜" * 300, "NaN", "\u0661", "²", "-1", "1e999", "%s", "{}", "con", "a\u2028b",
]  # fmt: skip
ODD_NUMBERS = [0, -1, 2**31, 2**63, 2**64, 10**30, -(2**63), 1e308, float("inf"), float("nan")]

texts = st.sampled_from(ODD_TEXTS) | st.text(max_size=40)
scalars = st.none() | st.booleans() | st.integers() | st.sampled_from(ODD_NUMBERS) | texts
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
"""Anything that JSON, as Python reads it, can be."""


@st.composite
def bent(draw: st.DrawFn, value: Any) -> Any:
    """A value with one or two of its parts replaced by anything, left out or doubled."""
    for _ in range(draw(st.integers(1, 2))):
        places = list(_places(value))
        value = _replaced(draw, value, draw(st.sampled_from(places)))
    return value


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    parts = value.items() if isinstance(value, dict) else ()
    for key, part in enumerate(value) if isinstance(value, list) else parts:
        yield from _places(part, (*path, key))


def _replaced(draw: st.DrawFn, value: Any, path: tuple[Any, ...]) -> Any:
    if not path:
        return draw(scalars | values)
    key, *rest = path
    copy = value.copy()
    kind = draw(st.sampled_from(["replace"] * 8 + ["leave out", "double"]))
    if rest or kind == "replace":
        copy[key] = _replaced(draw, value[key], tuple(rest))
    elif kind == "leave out":
        del copy[key]
    elif isinstance(value, list):
        copy.insert(key, value[key])
    else:
        copy[draw(texts)] = value[key]
    return copy


@st.composite
def broken(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes that were cut, or had some of them overwritten, removed or doubled."""
    found = bytearray(data)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(len(found) - 1, 0)))
        match draw(st.integers(0, 3)):
            case 0:
                new = draw(st.binary(max_size=8))
                found[at : at + len(new)] = new
            case 1:
                del found[at : at + draw(st.integers(1, 16))]
            case 2:
                found[at:at] = found[at : at + draw(st.integers(1, 64))]
            case _:
                found[at : at + 8] = draw(st.sampled_from([b"\xff" * 8, bytes(8), b"\x7f" * 8]))
    return bytes(
        found[: draw(st.integers(0, len(found)))] if draw(st.integers(0, 4)) == 0 else found
    )


def ours(call: Callable[[], T]) -> T | DriverError:
    """What a call returns, or the error of ours that it raises. Any other error is a fault."""
    try:
        return call()
    except DriverError as error:
        return error


def as_json(value: Any) -> bytes:
    """A value as bytes, whatever it holds."""
    return json.dumps(value).encode("utf-8", "surrogatepass")
