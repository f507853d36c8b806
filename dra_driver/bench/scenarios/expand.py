"""Matrices of a scenario: a case with one becomes a case for each combination. Pure.

In: a case as plain values, with a `matrix`: by name a list of values, or a map of labels and
values. Out: cases without one. `$name` alone stands for the value, of any type; in the middle of a
text, and in names of cases and roles, for its label. `$$` stands for a dollar sign.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from resource_nvidia_com.problems import InvalidConfigError, Path, Problem, hint

_VARIABLE = re.compile(r"\$(\$|[A-Za-z_][A-Za-z0-9_]*)")
_DOLLAR = {"$": ("$", "$")}
_NAMES = frozenset({"name", "role", "against", "undisturbed", "instead", "group"})
_MOST = 500

Values = Mapping[str, tuple[str, Any]]
"""A variable's label and value, by its name."""


def expanded(case: Any, path: Path) -> list[Any]:
    """Return the cases that a case with a matrix stands for. Raises InvalidConfigError."""
    if not isinstance(case, Mapping) or "matrix" not in case:
        return [_replaced(case, {}, path, is_name=False)]
    rest = {key: value for key, value in case.items() if key != "matrix"}
    every = list(_combinations(case["matrix"], (*path, "matrix")))
    if len(every) > _MOST:
        raise _wrong((*path, "matrix"), f"it has {len(every)} combinations, more than {_MOST}")
    return [_replaced(rest, values, path, is_name=False) for values in every]


def _combinations(matrix: Any, path: Path) -> Iterator[Values]:
    if not isinstance(matrix, Mapping) or not matrix:
        raise _wrong(path, "must be a map of variables and their values")
    choices: list[list[tuple[str, tuple[str, Any]]]] = []
    for name, values in matrix.items():
        if isinstance(values, Mapping):
            pairs = list(values.items())
        elif isinstance(values, list):
            pairs = [(f"{one:g}" if isinstance(one, float) else str(one), one) for one in values]
        else:
            pairs = []
        if not pairs:
            raise _wrong((*path, name), "must be a list of values, or a map of labels and values")
        choices.append([(str(name), (str(label), value)) for label, value in pairs])
    for chosen in itertools.product(*choices):
        yield dict(chosen)


def _replaced(value: Any, values: Values, path: Path, *, is_name: bool) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _replaced(inner, values, (*path, key), is_name=is_name or key in _NAMES)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [
            _replaced(inner, values, (*path, at), is_name=is_name) for at, inner in enumerate(value)
        ]
    if not isinstance(value, str) or "$" not in value:
        return value
    known = {**values, **_DOLLAR}
    for match in _VARIABLE.finditer(value):
        if match[1] not in known:
            near = hint(match[1], list(values)) if values else "it has no `matrix`; "
            what = f"the case has no variable ${match[1]}: {near}write $$ for a dollar sign"
            raise _wrong(path, what)
    alone = _VARIABLE.fullmatch(value)
    if alone and not is_name:
        return known[alone[1]][1]
    return _VARIABLE.sub(lambda match: known[match[1]][0], value)


def _wrong(path: Path, text: str) -> InvalidConfigError:
    return InvalidConfigError([Problem(path=path, text=text)])
