from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import Field

from dra_driver.admin.admission.cel import checks
from dra_driver.admin.admission.generate import POLICY, SCHEMAS, generated
from dra_driver.admin.admission.policy import policy_checks
from resource_nvidia_com.decode import MODELS
from resource_nvidia_com.model import ConfigModel, Exclusion, part_of
from resource_nvidia_com.schema import json_schemas

REPOSITORY = Path(__file__).resolve().parents[3]


def field_names(model: type[ConfigModel]) -> set[str]:
    names = set(model.fields())
    for part in filter(None, map(part_of, model.fields().values())):
        names |= field_names(part)
    return names


@pytest.mark.parametrize("path", generated(), ids=str)
def test_the_generated_files_have_not_drifted(path: Path) -> None:
    assert (REPOSITORY / path).read_text(encoding="utf-8") == generated()[path]


def test_schemas_of_removed_kinds_are_deleted() -> None:
    assert {path.stem for path in (REPOSITORY / SCHEMAS).iterdir()} == set(MODELS)


def documents() -> tuple[dict[str, Any], dict[str, Any]]:
    policy, binding = yaml.safe_load_all(generated()[POLICY])
    return policy["spec"], binding["spec"]


@pytest.mark.parametrize("kind", MODELS)
def test_every_field_of_a_model_is_in_the_policy_and_the_schema(kind: str) -> None:
    messages = " ".join(validation["message"] for validation in documents()[0]["validations"])
    schema = str(json_schemas()[kind])
    for name in field_names(MODELS[kind]):
        assert f".{name} " in messages
        assert f"'{name}'" in schema


def test_the_policy_refuses_by_default_and_is_bound() -> None:
    policy, binding = yaml.safe_load_all(generated()[POLICY])
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert binding["spec"]["validationActions"] == ["Deny"]


def test_each_message_is_its_rule_s_alone_and_begins_with_the_field() -> None:
    messages = [validation["message"] for validation in documents()[0]["validations"]]
    assert len(set(messages)) == len(messages)
    for one, message in zip(policy_checks().validations, messages, strict=True):
        assert message.startswith(f"{'.'.join(('opaque.parameters', *one.path))} ")


class Number(ConfigModel):
    number: Annotated[int | None, Field(ge=0, le=9)] = None


class OtherNumber(ConfigModel):
    number: Annotated[int | None, Field(ge=0, le=5)] = None


class Unruled(ConfigModel):
    anything: str | None = None


class Nested(ConfigModel):
    inner: Number | None = None
    number: Annotated[int | None, Field(ge=0, le=9)] = None


class Needed(ConfigModel):
    number: Annotated[int, Field(ge=0, le=9)]


class Whole(ConfigModel):
    inner: Number


class Excluding(Number):
    exclusions = (Exclusion(field="number", value="1", forbidden="number", text="no"),)


@pytest.mark.parametrize(
    ("models", "error"),
    [
        ({"A": Unruled}, "field anything has no rule"),
        ({"A": Number, "B": OtherNumber}, "field number has another rule in another kind"),
        ({"A": Number, "B": Needed}, "field number has another rule in another kind"),
        ({"A": Whole}, "object inner is required"),
        ({"A": Nested}, "two fields are named number"),
        ({"A": Excluding, "B": Number}, "B lacks an exclusion of number"),
    ],
    ids=["no-rule", "two-rules", "required-in-one", "required", "two-names", "exclusion"],
)
def test_uncheckable_rules_are_errors_at_generation(
    models: dict[str, type[ConfigModel]], error: str
) -> None:
    with pytest.raises(TypeError, match=error):
        checks(models)
