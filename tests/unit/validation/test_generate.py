from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from dra_driver.validation.cel import literal, model_problems
from dra_driver.validation.generate import POLICY, SCHEMAS, generated
from resource_nvidia_com.decode import MODELS, fields_at, inner_model
from resource_nvidia_com.schema import json_schemas
from resource_nvidia_com.v1beta1.base import ConfigModel

REPOSITORY = Path(__file__).resolve().parents[3]


def field_names(model: type[BaseModel]) -> set[str]:
    names = set(fields_at(model, ()))
    for field in fields_at(model, ()).values():
        inner = inner_model(field)
        names |= field_names(inner) if inner else set()
    return names


@pytest.mark.parametrize("path", generated(), ids=str)
def test_the_generated_files_have_not_drifted(path: Path) -> None:
    assert (REPOSITORY / path).read_text(encoding="utf-8") == generated()[path]


def test_no_schema_of_a_kind_that_is_no_more_is_left() -> None:
    assert {path.stem for path in (REPOSITORY / SCHEMAS).iterdir()} == set(MODELS)


def variables() -> dict[str, str]:
    policy, _ = yaml.safe_load_all(generated()[POLICY])
    return {one["name"]: one["expression"] for one in policy["spec"]["variables"]}


@pytest.mark.parametrize("kind", MODELS)
def test_every_field_of_a_model_is_in_the_policy_and_the_schema(kind: str) -> None:
    expression = variables()[kind[0].lower() + kind[1:]]
    schema = str(json_schemas()[kind])
    for name in field_names(MODELS[kind]):
        assert f"'{name}'" in expression
        assert f"'{name}'" in schema


def test_the_policy_refuses_by_default_and_is_bound() -> None:
    policy, binding = yaml.safe_load_all(generated()[POLICY])
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert binding["spec"]["validationActions"] == ["Deny"]


def test_a_field_without_a_rule_cannot_be_forgotten() -> None:
    class Unruled(ConfigModel):
        anything: str | None = None

    with pytest.raises(TypeError, match="field anything has no rule"):
        model_problems(Unruled, "value")


def test_texts_are_quoted_for_cel() -> None:
    assert literal("it's \\ \n") == "'it\\'s \\\\ \\n'"


def test_a_schema_says_which_fields_exclude_each_other() -> None:
    sharing: dict[str, Any] = json_schemas()["GpuConfig"]["$defs"]["GpuSharing"]
    conditions = {
        one["if"]["properties"]["strategy"]["const"]: one["then"]["properties"]
        for one in sharing["allOf"]
    }
    assert conditions == {
        "TimeSlicing": {"mpsConfig": {"type": "null"}},
        "MPS": {"timeSlicingConfig": {"type": "null"}},
    }
