"""What a pod gets that asks for `nvidia.com/gpu: 1`: the shipped classes on published devices."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from testbed.manifests import installed

import make
from consuming import Scheduler
from dra_driver.admin.api.slices import Device, read_slice
from dra_driver.admin.cel.selector import Selector
from dra_driver.admin.cel.values import EvaluationError
from dra_driver.admin.classes import manifest
from dra_driver.admin.cluster.usage import resource_of
from dra_driver.devices.model import Inventory
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.slices.consumable import Consumable
from dra_driver.slices.offer.shares import ShareOffer
from dra_driver.slices.project import projection
from resource_nvidia_com.quantity import quantity_bytes

GPU = "nvidia.com/gpu"
NAMES = (GPU, "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb.me")
MODES = ("memory", "unlimited", "4")

CARDS = make.inventory(
    make.gpu(0), make.gpu(1, mig=make.mig()), make.gpu(2, mig=make.mig(make.mig_device(2)))
)


def shipped() -> dict[str, str]:
    """The selectors of the classes that every cluster gets, by the classes' names."""
    found = {}
    for one in installed("DeviceClass"):
        (selector,) = one["spec"]["selectors"]
        found[one["metadata"]["name"]] = selector["cel"]["expression"]
    return found


def read(device: Mapping[str, Any]) -> Device:
    """A published device as commands read it."""
    spec = {"driver": DRIVER_NAME, "pool": {"name": "node-1"}, "devices": [device]}
    (found,) = read_slice({"spec": spec}).devices
    return found


def selects(expression: str, device: Mapping[str, Any]) -> bool:
    """Whether an expression holds for a published device."""
    return Selector.of(expression).selects(read(device).subject)


CLASSES = shipped()
EXTENDED = "gpu.resource.nvidia.com"
"""The class that stands behind nvidia.com/gpu."""


def by_capacity(mode: str, inventory: Inventory = CARDS) -> list[Any]:
    share = ShareOffer(consumable=Consumable.of(mode))
    return list(projection(inventory, share=share).devices)


def in_equal_shares(served_as: str) -> list[Any]:
    division = Division(
        count=4, strategy=ShareStrategy.TIME_SLICING, served_as=served_as, combines=True
    )
    divisions = {make.place(gpu): division for gpu in CARDS.gpus[:2]}
    return list(projection(CARDS, share=ShareOffer(divisions=divisions)).devices)


OFFERS: Mapping[str, list[Any]] = {
    "whole": list(projection(CARDS).devices),
    "equal shares": in_equal_shares(GPU),
    "renamed shares": in_equal_shares("nvidia.com/gpu.shared"),
    **{f"by capacity: {mode}": by_capacity(mode) for mode in MODES},
}


def selected(name: str, devices: list[Any]) -> list[str]:
    return [device["name"] for device in devices if selects(CLASSES[name], device)]


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("name", NAMES)
def test_a_class_selects_the_devices_that_status_counts_under_its_name(
    offer: str, name: str
) -> None:
    (found,) = yaml.safe_load_all(manifest({name: None}))
    (selector,) = found["spec"]["selectors"]
    for one in OFFERS[offer]:
        serves = resource_of(read(one)) == name
        assert selects(selector["cel"]["expression"], one) == serves, one["name"]


@pytest.mark.parametrize("mode", MODES)
def test_parts_by_capacity_have_a_resource_name_and_a_class(mode: str) -> None:
    devices = OFFERS[f"by capacity: {mode}"]

    assert selected(EXTENDED, devices) == selected("gpu.nvidia.com", devices) == ["gpu-0", "gpu-1"]
    parts = [device["name"] for device in devices if device.get("allowMultipleAllocations")]
    assert set(parts) == {"gpu-0", "gpu-1", "gpu-2-mig-1g10gb-19-0"}
    assert set(parts) - {"gpu-0", "gpu-1"} < set(selected("mig.nvidia.com", devices))


def test_resource_name_gives_a_share_and_class_the_whole_gpu() -> None:
    devices = OFFERS["equal shares"]

    shares = [device["name"] for device in devices if "replicas" in device["attributes"]]
    assert len(shares) == 8
    assert selected(EXTENDED, devices) == shares
    assert selected("gpu.nvidia.com", devices) == ["gpu-0", "gpu-1"]


@pytest.mark.parametrize("mode", MODES)
def test_requests_by_resource_name_consume_the_defaults(mode: str) -> None:
    """Container limits cannot say how much memory: they ask for no capacity."""
    (device,) = (one for one in by_capacity(mode) if one["name"] == "gpu-0")
    memory = quantity_bytes(device["capacity"]["memory"]["value"])
    scheduler = Scheduler(device)
    consumed = [{name: much for name, much in one.items() if much} for one in first_five(scheduler)]

    assert (
        consumed
        == {
            "memory": [{"memory": memory}],  # all of it, and so alone on the GPU
            "unlimited": [{}] * 5,
            "4": [{"shares": 1}] * 4,
        }[mode]
    )


def first_five(scheduler: Scheduler) -> list[dict[str, int]]:
    """What the first five pods of `nvidia.com/gpu: 1` on a GPU get, as far as they get any."""
    return [one for one in (scheduler.take({}) for _ in range(5)) if one is not None]


def test_in_mode_memory_they_exclude_claims_for_memory() -> None:
    (device,) = (one for one in by_capacity("memory") if one["name"] == "gpu-0")
    first, second = Scheduler(device), Scheduler(device)

    assert first.take({})
    assert first.take({"memory": 1}) is None
    assert second.take({"memory": 1})
    assert second.take({}) is None


def test_a_selector_that_reads_what_a_device_lacks_fails() -> None:
    """The scheduler gives up on the claim then, on every node."""
    bare: Any = {"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}}
    with pytest.raises(EvaluationError):
        selects("device.attributes['gpu.nvidia.com'].replicas == 4", bare)
    for expression in CLASSES.values():
        selects(expression, bare)
        selects(expression, {"name": "x", "attributes": {}})
