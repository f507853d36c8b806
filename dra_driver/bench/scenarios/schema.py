"""Writes the JSON schema of a scenario's file, for editors: hack/generate runs it.

In: the models, and the fields of a work. Out: a schema. In cases a variable of the matrix may stand
for any value except free text.
"""

import json
import sys
from pathlib import Path
from typing import Any

from dra_driver.bench.scenarios.model import PERCENT, WORK_KEYS, Scenario
from dra_driver.bench.workload import Workload

PATH = Path("dra_driver/bench/scenarios/scenario.schema.json")

_VARIABLE = {"type": "string", "pattern": r"^\$[A-Za-z_][A-Za-z0-9_]*$"}
_MATRIX = {
    "description": "By variable its values, or labels and values; $variable stands for each.",
    "type": "object",
    "minProperties": 1,
    "additionalProperties": {
        "anyOf": [{"type": "array", "minItems": 1}, {"type": "object", "minProperties": 1}]
    },
}


def schema() -> dict[str, Any]:
    """Return the schema."""
    made = Scenario.model_json_schema(by_alias=True)
    defined = made["$defs"]
    work = _work()
    defined |= work.pop("$defs")
    defined["Work"] = {"type": "object", "properties": work, "additionalProperties": False}
    made["properties"]["works"]["additionalProperties"] = {
        "allOf": [{"$ref": "#/$defs/Work"}, {"required": ["kind"]}]
    }
    for name in ("CaseSpec", "TenantSpec", "Limits"):
        properties = defined[name]["properties"]
        defined[name]["properties"] = {
            key: raw if key == "tenants" else _or_variable(raw) for key, raw in properties.items()
        }
    variable = {key: _or_variable(spec) for key, spec in work.items()}
    defined["TenantSpec"]["properties"]["with"] = {
        "description": "Keys of the work that differ here.",
        "type": "object",
        "properties": variable,
        "additionalProperties": False,
    }
    defined["CaseSpec"]["properties"]["matrix"] = _MATRIX
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": "Written by hack/generate from the models.",
    }
    return head | made


def _work() -> dict[str, Any]:
    """Return the schemas of a work's keys, and what they refer to by `$defs`."""
    whole = Workload.model_json_schema(by_alias=True)
    properties = {key: whole["properties"][key] for key in WORK_KEYS}
    for key, spec in properties.items():
        if key.endswith("_mib"):
            properties[key] = {"anyOf": [spec, {"type": "string", "pattern": f"^{PERCENT}$"}]}
    if "command" in properties:
        properties["command"] = {"anyOf": [properties["command"], {"type": "string"}]}
    return {**properties, "$defs": whole.get("$defs", {})}


def _or_variable(spec: dict[str, Any]) -> dict[str, Any]:
    is_any_text = spec.get("type") == "string" and not {"enum", "pattern"} & spec.keys()
    return spec if is_any_text else {"anyOf": [spec, _VARIABLE]}


if __name__ == "__main__":
    target = Path(sys.argv[1]) / PATH
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(schema(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
