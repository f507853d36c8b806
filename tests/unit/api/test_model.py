import subprocess
import sys

import pytest
from pydantic import ValidationError

from resource_nvidia_com.decode import decode
from resource_nvidia_com.device_plugin import decode_node_config
from resource_nvidia_com.problems import InvalidConfigError
from resource_nvidia_com.v1beta1.configs import GpuConfig
from resource_nvidia_com.v1beta1.names import SharingStrategy
from resource_nvidia_com.v1beta1.sharing import GpuSharing, MpsConfig


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
    with pytest.raises(ValidationError, match="frozen"):
        GpuConfig().sharing = None  # type: ignore[misc]


def test_a_program_can_write_a_config_by_the_names_of_python() -> None:
    settings = MpsConfig(default_active_thread_percentage=50, multi_user=True)
    sharing = GpuSharing(strategy=SharingStrategy.MPS, mps_config=settings)
    written = GpuConfig(sharing=sharing).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert written == {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "GpuConfig",
        "sharing": {
            "strategy": "MPS",
            "mpsConfig": {"defaultActiveThreadPercentage": 50, "multiUser": True},
        },
    }
    assert decode(written) == GpuConfig(sharing=sharing)


def test_a_program_cannot_make_a_config_that_the_driver_refuses() -> None:
    with pytest.raises(ValidationError, match="less than or equal to 100"):
        MpsConfig(default_active_thread_percentage=101)


@pytest.mark.parametrize("name", ["mps_config", "timeslicingconfig", "\ud800", "'\\\n", ""])
def test_users_write_the_names_of_the_api_alone(name: str) -> None:
    sharing = {"strategy": "MPS", name: None}
    with pytest.raises(InvalidConfigError, match='unknown field "sharing'):
        decode({"apiVersion": GpuConfig().api_version, "kind": "GpuConfig", "sharing": sharing})


def test_the_names_of_the_api_need_no_pydantic() -> None:
    code = (
        "import sys; from resource_nvidia_com import problems, quantity, resource_names; "
        "from resource_nvidia_com.v1beta1 import names; sys.exit('pydantic' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
