"""What is wrong with a config, in a user's words and with its place.

In: a value as JSON or YAML has it, the model that refused it, and pydantic's findings. Out: a
`Problem` for each, whose text stands alone. An unknown field or a key written twice would silently
mean something else than its author thought, so both are problems.

Python's JSON reader keeps the last of two equal keys and forgets the first. Who reads the JSON of a
claim passes `keep_duplicates` as its `object_pairs_hook`, and `checked` then knows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import UnionType
from typing import TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from resource_nvidia_com.rules import Checked, OneOf, Rule, either, plain, shown

Model = TypeVar("Model", bound=BaseModel)

Path = tuple[str | int, ...]
"""Keys and list indexes that lead from a config's root to a part of it."""

_SHAPES = {
    "model_type": "a JSON object",
    "model_attributes_type": "a JSON object",
    "dict_type": "a JSON object",
    "list_type": "a list",
}
"""What pydantic calls otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong with a config.

    `path` leads to it from the config's root. `text` says all, the path too, and stands alone.
    """

    path: Path
    text: str


class InvalidConfigError(ValueError):
    """A config cannot be accepted. The text says field, value and what is allowed."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(problem.text for problem in problems))
        self.problems = tuple(problems)


class DuplicateKeys(dict[str, object]):
    """A JSON object in which a key stood more than once; `duplicates` are those keys."""

    def __init__(self, pairs: Sequence[tuple[str, object]], duplicates: Sequence[str]) -> None:
        super().__init__(pairs)
        self.duplicates = tuple(duplicates)


def keep_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Build a JSON object and remember keys that stand twice (for `object_pairs_hook`)."""
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    keys = [key for key, _ in pairs]
    return DuplicateKeys(pairs, [key for key in value if keys.count(key) > 1])


def check_duplicates(value: object) -> None:
    """Raise InvalidConfigError if a key stands twice, or a value is nested too deep to tell."""
    try:
        found = list(_duplicates(value, ()))
    except RecursionError as error:
        raise InvalidConfigError([Problem(path=(), text="it is nested too deep")]) from error
    if found:
        raise InvalidConfigError(found)


def checked(model: type[Model], value: Mapping[str, object]) -> Model:
    """Return the model of a value. Raises InvalidConfigError, naming every field that is wrong."""
    try:
        return model.model_validate(dict(value))
    except ValidationError as error:
        found = [_problem(model, details) for details in error.errors(include_url=False)]
        raise InvalidConfigError(found) from error


def dotted(path: Path) -> str:
    """Return a path as Kubernetes writes it: `sharing.mps.resources[0].name`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{plain(part)}" for part in path)
    return "".join(parts).removeprefix(".")


def hint(name: str, allowed: Sequence[str] | Mapping[str, object]) -> str:
    """Return a question whether another name was meant, if one is near; else nothing."""
    lower = {option.lower(): option for option in allowed}
    near = get_close_matches(name.lower(), lower, n=1, cutoff=0.75)
    return f'did you mean "{lower[near[0]]}"? ' if near else ""


def fields_at(model: type[BaseModel], path: Path) -> dict[str, FieldInfo]:
    """Return the fields that are allowed at `path` below `model`, by the names users write."""
    for part in path:
        if isinstance(part, int):
            continue  # the model of a list's items is that of its field
        found = inner_model(fields_at(model, ())[part])
        if found is None:
            raise KeyError(part)
        model = found
    return {str(field.alias): field for field in model.model_fields.values()}


def inner_model(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model that a field holds, or a list of; None when it holds a value."""
    kind = field.annotation
    # `Model | None`: what is not set is None.
    options = get_args(kind) if get_origin(kind) in (UnionType, list) else (kind,)
    return next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)


def rule_of(field: FieldInfo) -> Rule | None:
    """Return the rule that hangs on a field."""
    return next((mark.rule for mark in field.metadata if isinstance(mark, Checked)), None)


def _problem(model: type[BaseModel], details: ErrorDetails) -> Problem:
    """Say in a user's words what pydantic found at one place."""
    return Problem(path=details["loc"], text=_text(model, details["loc"], details))


def _text(model: type[BaseModel], path: Path, details: ErrorDetails) -> str:
    where = dotted(path)
    match details["type"]:
        case "extra_forbidden":
            allowed = list(fields_at(model, path[:-1]))
            near = hint(str(path[-1]), allowed)
            return f'unknown field "{where}": {near}allowed fields: {", ".join(allowed)}'
        case "missing":
            return f'missing field "{where}"{_choice(fields_at(model, path[:-1])[str(path[-1])])}'
        case "value_error":
            return f"{where}: {details['ctx']['error']}"
        case "rule":
            return f"{where}: {details['msg']}"
        case _:
            said = details["msg"].removeprefix("Input should be ")
            allowed_value = _SHAPES.get(details["type"], said)
            return f"{where}: must be {allowed_value}, not {shown(details['input'])}"


def _choice(field: FieldInfo) -> str:
    rule = rule_of(field)
    return f": must be {either(rule.values)}" if isinstance(rule, OneOf) else ""


def _duplicates(value: object, path: Path) -> Iterator[Problem]:
    """Yield the keys below `value` that stand twice."""
    if isinstance(value, DuplicateKeys):
        for key in value.duplicates:
            text = f'duplicate field "{dotted((*path, key))}"'
            yield Problem(path=(*path, key), text=text)
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield from _duplicates(child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _duplicates(child, (*path, index))
