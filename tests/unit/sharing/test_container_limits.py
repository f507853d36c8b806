"""What a container gets that may have several requests of its claim."""

from typing import Any

import pytest

import make
from dra_driver.devices.device import DeviceKey, DeviceUuid, equal_shares, name_of, share_key
from dra_driver.devices.model import Gpu
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.errors import ConfigError
from dra_driver.mps.domain import Domain, DomainDevice, shared_domain
from dra_driver.sharing.base import Group, Unit
from dra_driver.sharing.container_limits import container_limits
from dra_driver.sharing.share_limits import limits_of
from dra_driver.sharing.steps import JoinDomain

GPU, OTHER = make.gpu(0), make.gpu(1)
TEN = Division(count=10, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=True)
FREE = Division(
    count=10,
    strategy=ShareStrategy.MPS,
    served_as="nvidia.com/gpu",
    combines=True,
    free_compute=True,
)


def unit(index: int, request: str, *, gpu: Gpu = GPU, division: Division = TEN) -> Unit:
    share = equal_shares(make.place(gpu), division)[index]
    return Unit(name=name_of(gpu, share), request=request, gpu=gpu, device=share)


def key(index: int) -> DeviceKey:
    return share_key(DeviceUuid(GPU.uuid), str(index))


def made(*units: Unit) -> JoinDomain:
    """The step with the limits of containers that have these shares."""
    config: Any = make.gpu_config(None)
    limits = limits_of([Group(claim="uid", config=config, units=units)], lambda _: True)
    return JoinDomain(
        devices=tuple(one.device for one in units),
        domain=Domain(id=shared_domain("gpu"), devices=(DomainDevice(uuid=GPU.uuid),)),
        claim="uid",
        clients=container_limits(units, limits, memory_in_environment=True),
    )


def test_two_requests_for_one_gpu_are_one_larger_request() -> None:
    step = made(unit(0, "a"), unit(1, "b"), unit(2, "b"))
    assert {
        (client.active_thread_percentage, *client.memory_mib.values())
        for client in step.clients.values()
    } == {(30, 8192 * 3)}
    said = ("with the claim's other requests 24576 MiB and 30 % of threads",)
    assert step.describe(key(0)).words == step.describe(key(2)).words == said


def test_what_only_memory_limits_is_told_without_threads() -> None:
    step = made(unit(0, "a", division=FREE), unit(1, "b", division=FREE))
    assert step.describe(key(0)).words == ("with the claim's other requests 16384 MiB",)


def test_of_one_request_nothing_more_is_told() -> None:
    assert made(unit(0, "a"), unit(1, "a")).describe(key(0)).words == ()


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
