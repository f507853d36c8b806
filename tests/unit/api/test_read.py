from dataclasses import FrozenInstanceError, dataclass

import pytest

from resource_nvidia_com.device_plugin import decode_node_config
from resource_nvidia_com.problems import InvalidConfigError
from resource_nvidia_com.read import checked
from resource_nvidia_com.v1beta1.base import ConfigModel
from resource_nvidia_com.v1beta1.gpu import GpuConfig


@dataclass(frozen=True, kw_only=True)
class Unruled(ConfigModel):
    anything: str | None = None


@dataclass(frozen=True, kw_only=True)
class Unresolved(ConfigModel):
    inner: "GpuConfig | None" = None


@pytest.mark.parametrize("model", [Unruled, Unresolved])
def test_a_model_with_a_field_that_nothing_checks_is_an_error(model: type[ConfigModel]) -> None:
    with pytest.raises(TypeError, match="has no rule, so it would hold whatever users write"):
        checked(model, {})


def test_everything_wrong_is_named_at_once_in_the_order_of_the_fields() -> None:
    resources = [{"replicas": 0, "extra": 1}, {"name": "gpu", "replicas": 2}, 3, {"devices": "no"}]
    with pytest.raises(InvalidConfigError) as caught:
        decode_node_config(
            {"what": 1, "sharing": {"mps": {"x": 1, "resources": resources}}, "version": "v2"}
        )
    below = ("sharing", "mps", "resources")
    assert [problem.path for problem in caught.value.problems] == [
        ("version",),
        (*below, 0, "name"),
        (*below, 0, "replicas"),
        (*below, 0, "extra"),
        (*below, 2),
        (*below, 3, "name"),
        (*below, 3, "devices"),
        (*below, 3, "replicas"),
        ("sharing", "mps", "x"),
        ("what",),
    ]


def test_a_config_that_was_read_cannot_change() -> None:
    with pytest.raises(FrozenInstanceError):
        checked(GpuConfig, {}).sharing = None  # type: ignore[misc]
