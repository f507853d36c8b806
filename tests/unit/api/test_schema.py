"""The JSON schemas, read by a validator as an editor has one."""

import json

import pytest
from jsonschema import Draft202012Validator

from bad_configs import BAD_CONFIGS
from resource_nvidia_com.schema import json_schemas

SCHEMAS = {kind: Draft202012Validator(schema) for kind, schema in json_schemas().items()}

BEYOND_A_SCHEMA = {
    # how much a quantity is
    "limit-under-1-mebibyte",
    "limit-of-nothing",
    "negative-limit",
    "limit-in-gigabytes-without-unit",
    "one-limit-too-low",
    # readers of JSON keep the last of two equal keys
    "strategy-twice",
    "kind-twice",
}


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_schema_is_one(kind: str) -> None:
    Draft202012Validator.check_schema(SCHEMAS[kind].schema)


def test_an_editor_marks_what_the_driver_refuses() -> None:
    for bad in BAD_CONFIGS:
        parameters = json.loads(bad.json)
        kind = parameters.get("kind") if isinstance(parameters, dict) else None
        schema = SCHEMAS.get(kind) if isinstance(kind, str) else None
        # An editor chooses the schema by the kind; without one it has nothing to say.
        if schema is not None:
            assert schema.is_valid(parameters) == (bad.name in BEYOND_A_SCHEMA), bad.name
