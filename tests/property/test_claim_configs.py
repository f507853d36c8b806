"""Any config is read or refused with problems that say where; what is read stays what it is."""

import json

from hypothesis import given
from jsonschema import Draft202012Validator

from dra_driver.admin.validate.findings import check_manifest
from generated_configs import Json, configs
from resource_nvidia_com.decode import decode
from resource_nvidia_com.problems import InvalidConfigError
from resource_nvidia_com.schema import json_schemas

SCHEMAS = {kind: Draft202012Validator(schema) for kind, schema in json_schemas().items()}


def texts(config: Json) -> list[str]:
    try:
        decode(config)
    except InvalidConfigError as error:
        return [problem.text for problem in error.problems]
    return []


@given(configs)
def test_a_config_survives_being_written_and_read(config: Json) -> None:
    if not texts(config):
        read = decode(config).normalise()
        assert decode(read.model_dump(mode="json", by_alias=True)) == read
        assert read.normalise() == read


@given(configs)
def test_the_command_finds_what_prepare_refuses(config: Json) -> None:
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "spec": {
            "devices": {"config": [{"opaque": {"driver": "gpu.nvidia.com", "parameters": config}}]}
        },
    }
    found = check_manifest(json.dumps(claim, indent=1)).findings
    before = "spec.devices.config[0].opaque.parameters"
    # The command names them in the order of the file.
    assert sorted(one.text.removeprefix(before).lstrip(": .") for one in found) == sorted(
        text.lstrip(": .") for text in texts(config)
    )


@given(configs)
def test_an_editor_marks_no_config_that_is_right(config: Json) -> None:
    try:
        kind = decode(config).kind
    except InvalidConfigError:
        return
    assert SCHEMAS[kind].is_valid(config)
