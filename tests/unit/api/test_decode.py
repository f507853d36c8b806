import json
from typing import Any

import pytest

from resource_nvidia_com.decode import decode
from resource_nvidia_com.problems import DuplicateKeys, InvalidConfigError, keep_duplicates
from resource_nvidia_com.v1beta1.configs import GpuConfig, MigDeviceConfig, VfioDeviceConfig
from resource_nvidia_com.v1beta1.names import Interval, SharingStrategy

VERSION = "resource.nvidia.com/v1beta1"


def parameters(kind: str = "GpuConfig", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": VERSION, "kind": kind, **fields}


def refusal(value: object) -> str:
    with pytest.raises(InvalidConfigError) as caught:
        decode(value)
    return str(caught.value)


def test_a_config_without_sharing_is_accepted() -> None:
    assert decode(parameters()) == GpuConfig()
    assert decode(parameters(sharing=None)).normalise() == GpuConfig()


def test_the_kinds_are_distinguished() -> None:
    assert isinstance(decode(parameters("GpuConfig")), GpuConfig)
    assert isinstance(decode(parameters("MigDeviceConfig")), MigDeviceConfig)
    assert isinstance(decode(parameters("VfioDeviceConfig")), VfioDeviceConfig)


def test_every_field_of_a_gpu_config_is_read() -> None:
    mps = {
        "defaultActiveThreadPercentage": 50,
        "defaultPinnedDeviceMemoryLimit": "10Gi",
        "defaultPerDevicePinnedMemoryLimit": {"0": "8Gi", "GPU-1": 10737418240},
        "multiUser": True,
    }
    config = decode(parameters(sharing={"strategy": "MPS", "mpsConfig": mps}))
    assert isinstance(config, GpuConfig)
    assert config.sharing is not None
    read = config.sharing.mps_config
    assert read is not None
    assert read.default_active_thread_percentage == 50
    assert read.default_pinned_device_memory_limit == "10Gi"
    assert read.default_per_device_pinned_memory_limit == {"0": "8Gi", "GPU-1": "10737418240"}
    assert read.multi_user is True


@pytest.mark.parametrize("settings", [None, {}, {"interval": None}, {"interval": "Default"}])
def test_time_slicing_without_an_interval_means_the_default_one(settings: object) -> None:
    sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": settings}
    config = decode(parameters(sharing=sharing)).normalise()
    assert isinstance(config, GpuConfig)
    assert config.sharing is not None
    assert config.sharing.strategy is SharingStrategy.TIME_SLICING
    assert config.sharing.time_slicing_config is not None
    assert config.sharing.time_slicing_config.interval is Interval.DEFAULT


@pytest.mark.parametrize("kind", ["GpuConfig", "MigDeviceConfig"])
def test_mps_without_settings_gets_empty_ones(kind: str) -> None:
    config = decode(parameters(kind, sharing={"strategy": "MPS"})).normalise()
    assert isinstance(config, GpuConfig | MigDeviceConfig)
    assert config.sharing is not None
    assert config.sharing.mps_config is not None


def test_a_mig_device_accepts_time_slicing() -> None:
    config = decode(parameters("MigDeviceConfig", sharing={"strategy": "TimeSlicing"}))
    assert config.normalise() == config


def vfio(**fields: Any) -> tuple[bool, bool]:
    config = decode(parameters("VfioDeviceConfig", **fields)).normalise()
    assert isinstance(config, VfioDeviceConfig)
    return config.prefers_iommufd, config.wants_api_device


@pytest.mark.parametrize(
    "fields", [{}, {"iommu": None}, {"iommu": {}}, {"iommu": {"enableAPIDevice": None}}]
)
def test_a_passed_through_gpu_has_the_older_interface_unless_another_is_asked_for(
    fields: dict[str, Any],
) -> None:
    assert vfio(**fields) == (False, False)


def test_every_field_of_a_vfio_config_is_read() -> None:
    iommu = {"backendPolicy": "PreferIommuFD", "enableAPIDevice": True}
    assert vfio(iommu=iommu) == (True, True)
    assert vfio(iommu={"backendPolicy": "LegacyOnly", "enableAPIDevice": True}) == (False, True)


def test_a_key_written_twice_is_refused() -> None:
    text = (
        f'{{"apiVersion":"{VERSION}","kind":"GpuConfig",'
        '"sharing":{"strategy":"MPS","strategy":"TimeSlicing"}}'
    )
    value = json.loads(text, object_pairs_hook=keep_duplicates)
    assert value["sharing"] == {"strategy": "TimeSlicing"}
    assert isinstance(value["sharing"], DuplicateKeys)
    assert refusal(value) == 'duplicate field "sharing.strategy"'
    in_a_list = json.loads('{"a":[{"b":1,"b":2}]}', object_pairs_hook=keep_duplicates)
    assert refusal(in_a_list) == 'duplicate field "a[0].b"'


def test_many_keys_written_twice_take_no_time_and_five_of_them_are_named() -> None:
    keys = ",".join(f'"{number}":0' for number in range(200_000))
    value = json.loads(f"{{{keys},{keys}}}", object_pairs_hook=keep_duplicates)
    assert value.duplicates == tuple(map(str, range(200_000)))
    nested = json.loads('{"a":0,"a":' * 800 + "0" + "}" * 800, object_pairs_hook=keep_duplicates)
    for each, more in ((value, 200_000 - 5), (nested, 800 - 5)):
        assert refusal(each).count("duplicate field") == 5
        assert refusal(each).endswith(f"; and {more} more")


def test_five_of_many_problems_are_shown_and_all_are_known() -> None:
    with pytest.raises(InvalidConfigError) as caught:
        decode(parameters(**{f"field{number}": 1 for number in range(1000)}))
    assert str(caught.value).count("unknown field") == 5
    assert str(caught.value).endswith("; and 995 more")
    assert len(caught.value.problems) == 1000


def test_the_path_of_a_key_that_is_nested_deep_is_cut_in_the_error() -> None:
    text = '{"abcdefgh":' * 400 + '{"a":1,"a":2}' + "}" * 400
    said = refusal(json.loads(text, object_pairs_hook=keep_duplicates))
    assert said.startswith('duplicate field "abcdefgh.abcdefgh.')
    assert said.endswith('…"')
    assert len(said) < 400
