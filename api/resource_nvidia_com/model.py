"""The base class of config models, and error messages about values for their authors.

In: a model and the value, as JSON or YAML has it. Out: the model; or InvalidConfigError, which
names every wrong field, in the order of the model's fields, and then unknown fields. Users write
the camelCase names of the API; programs may use the Python names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from resource_nvidia_com.printable import either, shown
from resource_nvidia_com.problems import (
    InvalidConfigError,
    Path,
    Problem,
    dotted,
    hint,
    lost_indent,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """Where `field` has `value`, the field `forbidden` must not be set. Names as users write them.

    `text` is the error.
    """

    field: str
    value: str
    forbidden: str
    text: str


class ConfigModel(BaseModel):
    """Base class of every config model."""

    model_config = ConfigDict(
        alias_generator=to_camel, extra="forbid", frozen=True, strict=True, validate_by_name=True
    )

    exclusions: ClassVar[tuple[Exclusion, ...]] = ()
    """Fields that exclude each other; checked when each of them is valid by itself."""

    @classmethod
    def fields(cls) -> Mapping[str, FieldInfo]:
        """Return the fields by the names that users write."""
        return {field.alias or name: field for name, field in cls.model_fields.items()}

    def normalise(self) -> Self:
        """Return it with every default of its parts filled in."""
        parts = {name: part.normalise() for name, part in self if isinstance(part, ConfigModel)}
        return self.model_copy(update=parts) if parts else self

    @model_validator(mode="after")
    def _check_exclusions(self) -> Self:
        if self.exclusions:
            values = {to_camel(name): value for name, value in self}
            for rule in self.exclusions:
                if values[rule.field] == rule.value and values[rule.forbidden] is not None:
                    raise ValueError(rule.text)
        return self


Model = TypeVar("Model", bound=ConfigModel)


def checked(model: type[Model], value: Mapping[str, object]) -> Model:
    """Return the model of a value. Raises InvalidConfigError, naming every field that is wrong."""
    try:
        return model.model_validate(dict(value), by_alias=True, by_name=False)
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise InvalidConfigError([_problem(model, value, detail) for detail in details]) from error


def names_of(field: FieldInfo) -> Sequence[str]:
    """Return the names that a field can have; none if it holds something else."""
    kinds = (field.annotation, *get_args(field.annotation))
    enums = (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, StrEnum))
    return [*next(enums, ())]


def part_of(field: FieldInfo) -> type[ConfigModel] | None:
    """Return the model that a field holds, alone or in a list; None if it holds a plain value."""
    kinds = (field.annotation, *get_args(field.annotation))
    return next(
        (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, ConfigModel)), None
    )


_TYPES = MappingProxyType(
    {
        "bool_type": "true or false",
        "dict_type": "a JSON object",
        "greater_than_equal": "at least {ge}",
        "int_type": "a whole number",
        "less_than_equal": "at most {le}",
        "list_type": "a list",
        "model_type": "a JSON object",
    }
)
"""What a value must be, by the type of pydantic's error."""


def _problem(model: type[ConfigModel], value: Any, error: ErrorDetails) -> Problem:
    path: Path = error["loc"][:-1] if error["loc"][-1:] == ("[key]",) else error["loc"]
    where = dotted(path)
    match error["type"]:
        case "value_error":
            text = f"{where}: {error['ctx']['error']}"
        case "missing" | "extra_forbidden" | "invalid_key" | "string_unicode":
            if error["type"] == "string_unicode":  # a name that is not valid Unicode
                path = (*path, error["input"])
            text = _of_name(*_holder(model, value, path), path)
        case "enum":
            names = names_of(_holder(model, value, path)[0][str(path[-1])])
            text = f"{where}: must be {either(names)}, not {shown(error['input'])}"
        case kind if kind in _TYPES:
            must = _TYPES[kind].format(**error.get("ctx", {}))
            text = f"{where}: must be {must}, not {shown(error['input'])}"
        case _:
            text = f"{where}: {error['msg']}"
    return Problem(path=path, text=text)


def _holder(
    model: type[ConfigModel], value: Any, path: Path
) -> tuple[Mapping[str, FieldInfo], Mapping[str, object]]:
    """Return the fields of the object that has the end of a path, and the object itself."""
    fields = model.fields()
    for key in path[:-1]:
        value = value[key]
        if isinstance(key, str) and (part := part_of(fields[key])):
            fields = part.fields()
    return fields, value


def _of_name(fields: Mapping[str, FieldInfo], value: Mapping[str, object], path: Path) -> str:
    """Return the error about a missing field, or an unknown one."""
    where, name = dotted(path), str(path[-1])
    if name in fields:
        names = names_of(fields[name])
        return f'missing field "{where}"' + (f": must be {either(names)}" if names else "")
    allowed = f"{hint(name, fields)}allowed fields: {', '.join(fields)}{lost_indent(name, value)}"
    return f'unknown field "{where}": {allowed}'
