"""The functions of CEL for strings, and those for lists that share their names.

Places are counted in characters; what is out of range is an error (cel-go, ext.Strings version 2).
Pure.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import re2

from dra_driver.admin.cel.values import EvaluationError, NotUnderstoodError, equal, need

_LONGEST = 100_000
"""The most characters that a function returns; CEL's own cost limit is 10^6."""


def of_strings(function: Callable[..., object]) -> Callable[..., object]:
    """Return a function that takes only strings."""

    def result(*values: object) -> object:
        for value in values:
            need(value, str)
        return function(*values)

    return result


def matches(text: str, regex: str) -> bool:
    """Tell whether a regular expression is found in a text (CEL: syntax and meaning of RE2)."""
    return _compiled(regex).search(text) is not None


@lru_cache(maxsize=256)
def _compiled(regex: str) -> Any:
    options = re2.Options()
    options.log_errors = False  # else RE2 writes to standard error
    options.never_capture = True
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        why = error.args[0].decode(errors="replace")
        raise EvaluationError(f"error parsing regexp: {why}") from None


def index_of(text: Any, part: Any, offset: Any = 0) -> int:
    """Return the first place of a string in a string, or of a value in a list."""
    if isinstance(text, list):
        return next((at for at, char in enumerate(text) if equal(char, part)), -1)
    need(text, str)
    need(part, str)
    need(offset, int)
    if int(offset) < 0:
        raise EvaluationError(f"index out of range: {offset}")
    if part == "":
        return min(int(offset), len(text))
    return int(text.find(part, offset))


def substring(text: Any, start: Any, end: Any = None) -> str:
    """Return a part of a string."""
    need(text, str)
    need(start, int)
    stop = len(text) if end is None else end
    need(stop, int)
    if start > stop and end is not None:
        raise EvaluationError(f"invalid substring range. start: {start}, end: {end}")
    for place in (start, stop):
        if not 0 <= place <= len(text):
            raise EvaluationError(f"index out of range: {place}")
    return str(text[start:stop])


def split(text: Any, separator: Any, most: Any = -1) -> list[object]:
    """Return the parts of a string, `most` of them."""
    need(text, str)
    need(separator, str)
    need(most, int)
    if most == 0:
        return []
    parts: list[str] = text.split(separator) if separator else list(text)
    if int(most) > 0 and len(parts) > int(most):
        kept, rest = parts[: most - 1], parts[most - 1 :]
        parts = [*kept, str(separator).join(rest)]
    return list(parts)


def replace(text: Any, old: Any, new: Any, most: Any = -1) -> str:
    """Return a string with its first `most` parts that are `old` replaced."""
    for value in (text, old, new):
        need(value, str)
    need(most, int)
    if len(text) + (text.count(old) * len(new)) > _LONGEST:
        raise NotUnderstoodError("a string of that length")
    return str(text.replace(old, new, most))


def join(parts: Any, separator: Any = "") -> str:
    """Return strings as one."""
    need(parts, list)
    need(separator, str)
    for part in parts:
        need(part, str)
    return str(separator).join(parts)


def trim(text: str) -> str:
    """Return a string without white space around it."""
    return text.strip("\t\n\v\f\r \x85\xa0\u2000\u2028\u2029\u3000")


def ascii_only(change: Callable[[str], str]) -> Callable[[str], str]:
    """Return a function that changes only a string's ASCII characters."""
    return lambda text: "".join(change(char) if char.isascii() else char for char in text)
