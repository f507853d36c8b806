"""JSON schemas of the configs, for editors and for tools that know no Kubernetes.

In: the models. Out: a schema per kind (JSON Schema 2020-12). It says less than the models: a limit
that is too low, for one, is a matter of its value and not of its form.
"""

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from resource_nvidia_com.decode import MODELS
from resource_nvidia_com.problems import inner_model
from resource_nvidia_com.v1beta1.base import API_VERSION, ConfigModel, Exclusion


def json_schemas() -> dict[str, dict[str, Any]]:
    """Return the schema of each kind, by kind."""
    return {kind: _schema(model) for kind, model in MODELS.items()}


def _schema(model: type[ConfigModel]) -> dict[str, Any]:
    made = model.model_json_schema(by_alias=True)
    parts = {part.__name__: part for part in _models(model)}
    for name, part in [*made.get("$defs", {}).items(), (model.__name__, made)]:
        _tidy(part)
        if name in parts and parts[name].exclusions:
            part["allOf"] = [_condition(rule) for rule in parts[name].exclusions]
    made["required"] = ["apiVersion", "kind"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | made


def _models(model: type[BaseModel]) -> Iterator[type[ConfigModel]]:
    """Yield a model and every model below it."""
    if issubclass(model, ConfigModel):
        yield model
    for field in model.model_fields.values():
        inner = inner_model(field)
        if inner is not None:
            yield from _models(inner)


def _condition(rule: Exclusion) -> dict[str, Any]:
    return {
        "if": {"properties": {rule.field: {"const": rule.value}}, "required": [rule.field]},
        "then": {"properties": {rule.forbidden: {"type": "null"}}},
    }


def _tidy(schema: dict[str, Any]) -> None:
    """Drop titles that only repeat names, and line breaks of docstrings."""
    schema["title"] = schema.get("title", API_VERSION)
    schema["description"] = re.sub(r"\s+", " ", schema.get("description", ""))
    for field in schema.get("properties", {}).values():
        field.pop("title", None)
