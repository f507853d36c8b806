from typing import Any

import pytest

import make
from dra_driver.errors import ConfigError
from dra_driver.sharing.mps_limits import active_thread_percentage, pinned_memory_mib
from resource_nvidia_com.v1beta1.sharing import MpsConfig

A, B, C = "GPU-aaaaaaaa", "GPU-bbbbbbbb", "GPU-cccccccc"


def config(default: str | None = None, **per_device: str) -> MpsConfig:
    settings: dict[str, Any] = {}
    if default:
        settings["defaultPinnedDeviceMemoryLimit"] = default
    if per_device:
        settings["defaultPerDevicePinnedMemoryLimit"] = {
            key.lstrip("_").replace("GPU_", "GPU-"): limit for key, limit in per_device.items()
        }
    return mps_config(**settings)


def mps_config(**settings: Any) -> MpsConfig:
    sharing = make.gpu_config("MPS", **settings).sharing
    assert sharing is not None
    assert sharing.mps_config is not None
    return sharing.mps_config


@pytest.mark.parametrize(
    ("limit", "mib"),
    [("2Gi", 2048), ("10M", 9), ("1G", 953), ("1Mi", 1), ("1.5Mi", 1), ("1Ti", 1024**2)],
)
def test_a_limit_is_in_whole_mib(limit: str, mib: int) -> None:
    assert pinned_memory_mib(config(limit), [A]) == {A: mib}


def test_without_a_limit_there_is_none() -> None:
    assert pinned_memory_mib(config(), [B, A]) == {A: None, B: None}


def test_entries_override_the_default() -> None:
    limits = pinned_memory_mib(config("2Gi", _1="3Gi", GPU_cccccccc="1Gi"), [C, A, B])
    assert limits == {A: 2048, B: 3072, C: 1024}


def test_an_index_counts_uuids_in_alphabetical_order() -> None:
    assert list(pinned_memory_mib(config(_0="1Gi"), [C, B])) == [B, C]
    assert pinned_memory_mib(config(_0="1Gi"), [C, B]) == {B: 1024, C: None}


@pytest.mark.parametrize(
    ("key", "error"),
    [
        ("_2", "invalid device: invalid device index: 2; the devices under this config are GPU-aa"),
        ("GPU_dddddddd", "invalid device: unable to parse key as an integer: GPU-dddddddd"),
    ],
)
def test_a_key_that_names_no_device_is_refused(key: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        pinned_memory_mib(config(**{key: "1Gi"}), [A, B])


def test_two_keys_for_one_device_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        pinned_memory_mib(config(_1="1Gi", GPU_bbbbbbbb="2Gi"), [A, B])
    assert str(caught.value) == (
        "invalid device: 1 and GPU-bbbbbbbb are the same device of "
        "defaultPerDevicePinnedMemoryLimit, which can have only one limit"
    )


def test_a_percentage_of_zero_is_no_limit() -> None:
    assert active_thread_percentage(mps_config(defaultActiveThreadPercentage=0)) is None
    assert active_thread_percentage(mps_config()) is None
    assert active_thread_percentage(mps_config(defaultActiveThreadPercentage=7)) == 7
