"""JSON schemas of the configs, for editors and for tools without Kubernetes.

In: the models. Out: a schema per kind (JSON Schema 2020-12). It checks less than the models: it
cannot tell that a limit is too low, for example.
"""

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from resource_nvidia_com.decode import MODELS
from resource_nvidia_com.model import Exclusion


class _Schema(GenerateJsonSchema):
    """Adds the exclusions of models, and omits titles that repeat the names of fields."""

    def field_title_should_be_set(self, schema: object) -> bool:
        del schema
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        if conditions := list(map(_condition, schema["cls"].exclusions)):
            made["allOf"] = conditions
        return made


def _condition(exclusion: Exclusion) -> dict[str, Any]:
    return {
        "if": {
            "properties": {exclusion.field: {"const": exclusion.value}},
            "required": [exclusion.field],
        },
        "then": {"properties": {exclusion.forbidden: {"type": "null"}}},
    }


def json_schemas() -> dict[str, dict[str, Any]]:
    """Return the schema of each kind, by kind."""
    return {
        kind: {
            "$schema": _Schema.schema_dialect,
            **model.model_json_schema(schema_generator=_Schema),
            "required": ["apiVersion", "kind"],
        }
        for kind, model in MODELS.items()
    }
