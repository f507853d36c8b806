"""Reads a value that a user wrote into its model, or says everything that is wrong with it.

In: a model and the value, as JSON or YAML has it. Out: the model; or InvalidConfigError, which
names every field that is wrong, in the order of the model's fields, and then what none of them
knows. Only the camelCase names of the API are accepted. What values must be is said on the models.
"""

from collections.abc import Mapping
from typing import TypeVar

from resource_nvidia_com.problems import (
    InvalidConfigError,
    Path,
    Problem,
    dotted,
    hint,
    lost_indent,
)
from resource_nvidia_com.rules import Checked, OneOf, converted, either, problems, shown
from resource_nvidia_com.v1beta1.base import OTHERS, ConfigModel, Converted, ModelField

Model = TypeVar("Model", bound=ConfigModel)


def checked(model: type[Model], value: Mapping[str, object]) -> Model:
    """Return the model of a value. Raises InvalidConfigError, naming every field that is wrong."""
    found: list[Problem] = []
    made = _model(model, dict(value), (), found)
    if made is None:
        raise InvalidConfigError(found)
    return made


def _model(model: type[Model], value: object, path: Path, found: list[Problem]) -> Model | None:
    """Return a model; None where something is wrong, which is then among what was found."""
    if not isinstance(value, dict):
        _refuse(path, f"must be a JSON object, not {shown(value)}", found)
        return None
    fields, before = model.fields(), len(found)
    values: dict[str, object] = {}
    for name, field in fields.items():
        if name in value:
            values[field.attribute] = _value(field, value[name], (*path, name), found)
        elif field.is_required:
            found.append(_missing(field, (*path, name)))
    others = {name: one for name, one in value.items() if name not in fields}
    if hasattr(model, OTHERS):
        values[OTHERS] = others
    else:
        found += [_unknown(fields, (*path, name), value) for name in others]
    if len(found) > before:
        return None
    made = model(**values)
    for rule in model.exclusions:
        is_set = getattr(made, fields[rule.forbidden].attribute) is not None
        if is_set and getattr(made, fields[rule.field].attribute) == rule.value:
            _refuse(path, rule.text, found)
            return None
    return made


def _value(field: ModelField, value: object, path: Path, found: list[Problem]) -> object:
    """Return what a field holds; None where something is wrong."""
    if isinstance(field.mark, Converted):
        try:
            value = field.mark.function(value)
        except ValueError as error:
            _refuse(path, str(error), found)
            return None
    if value is None and field.is_nullable:
        return None
    if isinstance(field.mark, Checked):
        wrong = list(problems(field.mark.rule, value))
        for key, text in wrong:
            _refuse(path if key is None else (*path, key), text, found)
        return None if wrong else converted(field.mark.rule, value)
    if field.model is None:
        return value
    read = _models if field.is_list else _model
    return read(field.model, value, path, found)


def _models(
    model: type[Model], value: object, path: Path, found: list[Problem]
) -> list[Model | None]:
    if not isinstance(value, list):
        _refuse(path, f"must be a list, not {shown(value)}", found)
        return []
    return [_model(model, one, (*path, index), found) for index, one in enumerate(value)]


def _refuse(path: Path, text: str, found: list[Problem]) -> None:
    found.append(Problem(path=path, text=f"{dotted(path)}: {text}"))


def _missing(field: ModelField, path: Path) -> Problem:
    where = dotted(path)
    match field.mark:
        case Converted(missing=str(text)) if text:
            return Problem(path=path, text=f"{where}: {text}")
        case Checked(OneOf(values=names)):
            return Problem(path=path, text=f'missing field "{where}": must be {either(names)}')
        case _:
            return Problem(path=path, text=f'missing field "{where}"')


def _unknown(fields: Mapping[str, ModelField], path: Path, value: Mapping[str, object]) -> Problem:
    name = str(path[-1])
    allowed = f"{hint(name, fields)}allowed fields: {', '.join(fields)}{lost_indent(name, value)}"
    return Problem(path=path, text=f'unknown field "{dotted(path)}": {allowed}')
