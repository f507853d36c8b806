"""Share configs of any values: read or refused in words, and soon."""

from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fuzz
from dra_driver.admin.validate.findings import check_manifest
from dra_driver.errors import ConfigError
from dra_driver.shares.config import LARGEST, read_node_config
from resource_nvidia_com.device_plugin import NodeConfig

UUID = "GPU-b1028956-cfa2-0990-bf4a-5da9abb51763"
GOOD: dict[str, Any] = {
    "version": "v1",
    "flags": {"migStrategy": "mixed", "plugin": {"passDeviceSpecs": True}},
    "sharing": {
        "mps": {
            "renameByDefault": True,
            "failRequestsGreaterThanOne": False,
            "resources": [
                {"name": "nvidia.com/gpu", "replicas": 10, "devices": [0, "1", UUID]},
                {"name": "mig-1g.5gb", "rename": "small", "replicas": 2, "devices": ["0:1"]},
            ],
        }
    },
}

names = st.sampled_from(["gpu", "nvidia.com/gpu", "mig-1g.5gb", "gpu.shared", "cpu"])
resources = st.fixed_dictionaries(
    {"name": names, "replicas": st.integers(-1, 5)},
    optional={
        "rename": names,
        "devices": st.sampled_from(["all", "none"])
        | st.integers(0, 3)
        | st.lists(st.sampled_from([0, 1, "0", "0:1", "1:0", UUID]), max_size=3),
    },
)
sections = st.fixed_dictionaries(
    {"resources": st.lists(resources, max_size=3)},
    optional={"renameByDefault": st.booleans(), "failRequestsGreaterThanOne": st.booleans()},
)
configs = st.fixed_dictionaries(
    {"version": st.just("v1")},
    optional={"sharing": st.dictionaries(st.sampled_from(["timeSlicing", "mps"]), sections)},
)


def outcome(data: bytes) -> NodeConfig | str:
    """What a file says, or why it is refused. Fails if that is anything else."""
    try:
        return read_node_config(data, "FILE")
    except ConfigError as error:
        text = str(error)
    assert text.startswith("FILE:")
    assert "\n" not in text
    assert len(text) < 20_000
    return text


@given(fuzz.values | fuzz.bent(GOOD))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_any_value_is_a_config_or_an_error(value: Any) -> None:
    outcome(fuzz.as_json(value))


@given(configs)
def test_accepted_configs_are_consistent(value: dict[str, Any]) -> None:
    said = outcome(yaml.safe_dump(value).encode())
    if isinstance(said, str):
        return
    assert (said.shared_by is None) is (said.resources == ())
    owners: dict[str, str] = {}
    for one in said.resources:
        assert one.replicas > 1
        assert owners.setdefault(one.served_as, one.name) == one.name
    for name in {resource.name for resource in said.resources}:
        choices = [resource.devices for resource in said.resources if resource.name == name]
        if len(choices) > 1:
            assert all(isinstance(choice, tuple) for choice in choices)
            listed = [
                reference for choice in choices if isinstance(choice, tuple) for reference in choice
            ]
            assert len(set(listed)) == len(listed)


@given(configs)
def test_the_command_finds_what_the_driver_refuses(value: dict[str, Any]) -> None:
    text = yaml.safe_dump(value)
    said = outcome(text.encode())
    errors = (finding for finding in check_manifest(text).findings if finding.severity == "error")
    found = [f"FILE:{error.line}:{error.column}: {error.text}" for error in errors]
    if isinstance(said, NodeConfig):
        assert found == []
    else:
        assert found
        # The command names them in the order of the file, and the driver five of them.
        named = sum(one in said for one in found)
        assert named == len(found) if len(found) <= 5 else named >= 5


def repeated(line: str, count: int) -> str:
    """Lines for n = 1, 2, …: `<n>` is n in each, `<p>` is n - 1."""
    numbers = range(1, count)
    return "".join(line.replace("<n>", str(n)).replace("<p>", str(n - 1)) for n in numbers)


LIST = "sharing: {mps: {resources: ["
HUGE = {
    "laughs": "a0: &a0 [x]\n" + repeated("a<n>: &a<n> [*a<p>, *a<p>]\n", 99),
    "merges": "a0: &a0 {k: 1}\n" + repeated("a<n>: &a<n> {<<: [*a<p>, *a<p>]}\n", 99),
    "deep maps": "{a: " * (LARGEST // 4),
    "resources": LIST + "{name: gpu, replicas: 2}, " * 4500 + "]}}",
}


@pytest.mark.parametrize("text", HUGE.values(), ids=HUGE)
def test_the_most_costly_files_end_too(text: str) -> None:
    outcome(text.encode())
