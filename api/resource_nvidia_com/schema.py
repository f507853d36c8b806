"""JSON schemas of the configs, for editors and for tools that know no Kubernetes.

In: the models. Out: a schema per kind (JSON Schema 2020-12). It says less than the models: a limit
that is too low, for one, is a matter of its value and not of its form.
"""

import inspect
from collections.abc import Iterator
from typing import Any

from resource_nvidia_com.decode import MODELS
from resource_nvidia_com.rules import Checked, json_schema
from resource_nvidia_com.v1beta1.base import ConfigModel, Exclusion, ModelField


def json_schemas() -> dict[str, dict[str, Any]]:
    """Return the schema of each kind, by kind."""
    return {kind: _schema(model) for kind, model in MODELS.items()}


def _schema(model: type[ConfigModel]) -> dict[str, Any]:
    parts = sorted(set(_parts(model)), key=lambda part: part.__name__)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": {part.__name__: _object(part) for part in parts},
        **_object(model),
        "required": ["apiVersion", "kind"],
    }


def _parts(model: type[ConfigModel]) -> Iterator[type[ConfigModel]]:
    """Yield every model below a model."""
    for field in model.fields().values():
        if field.model:
            yield field.model
            yield from _parts(field.model)


def _object(model: type[ConfigModel]) -> dict[str, Any]:
    fields = model.fields()
    required = [name for name, field in fields.items() if field.is_required]
    conditions = [_condition(rule) for rule in model.exclusions]
    return {
        "additionalProperties": False,
        "description": " ".join((inspect.getdoc(model) or "").split()),
        "properties": {name: _field(field) for name, field in fields.items()},
        **({"required": required} if required else {}),
        "title": model.__name__,
        "type": "object",
        **({"allOf": conditions} if conditions else {}),
    }


def _field(field: ModelField) -> dict[str, Any]:
    made: dict[str, Any] = {} if field.is_required else {"default": field.default}
    if isinstance(field.mark, Checked):
        kinds = json_schema(field.mark.rule)
        made["description"] = field.mark.description
    elif field.model:
        kinds = {"$ref": f"#/$defs/{field.model.__name__}"}
    else:
        kinds = {"const": field.default, "type": "string"}
    return dict(sorted((made | _nullable(kinds) if field.is_nullable else made | kinds).items()))


def _nullable(kinds: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [kinds, {"type": "null"}]}


def _condition(rule: Exclusion) -> dict[str, Any]:
    return {
        "if": {"properties": {rule.field: {"const": rule.value}}, "required": [rule.field]},
        "then": {"properties": {rule.forbidden: {"type": "null"}}},
    }
