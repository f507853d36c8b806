"""What a container gets that may have several requests of its claim."""

from collections.abc import Mapping
from typing import Any

import pytest

import make
from dra_driver.devices.kinds import name_of
from dra_driver.devices.model import Gpu
from dra_driver.devices.shares import Division, Share, ShareStrategy
from dra_driver.errors import ConfigError
from dra_driver.sharing.base import DeviceKey, DeviceUuid, Group, ShareUnit, share_key
from dra_driver.sharing.container_limits import (
    ContainerLimits,
    changes_of,
    container_limits,
    words_for,
)
from dra_driver.sharing.share_limits import limits_of

GPU, OTHER = make.gpu(0), make.gpu(1)
TEN = Division(count=10, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=True)
FREE = Division(
    count=10,
    strategy=ShareStrategy.MPS,
    served_as="nvidia.com/gpu",
    combines=True,
    free_compute=True,
)


def unit(index: int, request: str, *, gpu: Gpu = GPU, division: Division = TEN) -> ShareUnit:
    share = Share(of=gpu, index=index, division=division)
    return ShareUnit(name=name_of(gpu, share), request=request, gpu=gpu, share=share)


def key(index: int) -> DeviceKey:
    return share_key(DeviceUuid(GPU.uuid), str(index))


def made(*units: ShareUnit) -> tuple[Mapping[DeviceKey, ContainerLimits], Mapping[str, Any]]:
    """The limits of containers with these shares, and what the plan says of them."""
    config: Any = make.gpu_config(None)
    limits = limits_of([Group(claim="uid", config=config, shares=units)], lambda _: True)
    found = container_limits(units, limits, memory_in_environment=True)
    return found, changes_of(found, limits)


def test_two_requests_for_one_gpu_are_one_larger_request() -> None:
    found, changes = made(unit(0, "a"), unit(1, "b"), unit(2, "b"))
    assert {(one.active_thread_percentage, *one.memory_mib.values()) for one in found.values()} == {
        (30, 8192 * 3)
    }
    said = ["with the claim's other requests 24576 MiB and 30 % of threads"]
    assert words_for(changes, key(0)) == words_for(changes, key(2)) == said


def test_what_only_memory_limits_is_told_without_threads() -> None:
    _, changes = made(unit(0, "a", division=FREE), unit(1, "b", division=FREE))
    assert words_for(changes, key(0)) == ["with the claim's other requests 16384 MiB"]


def test_of_one_request_nothing_more_is_told() -> None:
    _, changes = made(unit(0, "a"), unit(1, "a"))
    assert words_for(changes, key(0)) == []


def test_requests_for_different_gpus_are_refused_with_what_to_write_instead() -> None:
    with pytest.raises(ConfigError) as caught:
        made(unit(0, "a"), unit(1, "b", gpu=OTHER))
    assert str(caught.value) == (
        "requests of this claim got shares of different GPUs (a: gpu-0-share-0-of-10; b: "
        "gpu-1-share-1-of-10), and the same limits cannot fit a container with one of these "
        "requests and a container with all: ask for all shares of a container in one request "
        "(`count`), and give each container a claim of its own, or shares by `nvidia.com/gpu` in "
        "its limits"
    )
