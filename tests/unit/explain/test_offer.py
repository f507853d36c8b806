"""What slices say, and which pools a node has."""

from typing import Any

import pytest

from dra_driver.admin.api.nodes import Node, Taint
from dra_driver.admin.api.slices import DeviceId, TaintRule, read_slice
from dra_driver.admin.explain.pools import Fault, Pools
from published import SET, counter_set, device, slices

NODE = Node(name="node-1")
BAD = {"key": "example.com/bad", "value": "very", "effect": "NoSchedule"}


def offer(things: list[dict[str, Any]]) -> Pools:
    return Pools(map(read_slice, things))


def rule(**selector: str) -> TaintRule:
    found = TaintRule.of({"spec": {"deviceSelector": selector, "taint": BAD}})
    assert found is not None
    return found


def test_devices_come_in_the_order_of_their_slices() -> None:
    things = slices([device(f"gpu-{n}") for n in range(70)])
    (pool,) = offer(list(reversed(things))).on(NODE)
    assert [one.id.device for one in pool.devices] == [f"gpu-{n}" for n in range(70)]


def test_the_newer_of_two_generations_counts() -> None:
    old, new = slices([device("old")]), slices([device("new")], generation=2)
    new[0]["metadata"]["name"] = "new"
    (pool,) = offer([*new, *old]).on(NODE)
    assert [one.id.device for one in pool.devices] == ["new"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"name": "gpu-0"}, "two of its devices are named gpu-0"),
        (
            device("gpu-1", {"nothing": 1}),
            f"device gpu-1 consumes the counter nothing of {SET}, which is not published",
        ),
    ],
)
def test_a_pool_that_contradicts_itself_is_invalid(change: dict[str, Any], problem: str) -> None:
    things = slices([device("gpu-0"), device("gpu-1")], [counter_set(slices=7)])
    (devices,) = (thing["spec"]["devices"] for thing in things if "devices" in thing["spec"])
    devices[1].update(change)
    (pool,) = offer(things).on(NODE)
    assert (pool.fault, pool.problem) == (Fault.INVALID, problem)


@pytest.mark.parametrize(
    ("selector", "tainted"),
    [
        ({}, True),
        ({"driver": "gpu.nvidia.com"}, True),
        ({"driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-0"}, True),
        ({"pool": "node-2"}, False),
        ({"device": "gpu-1"}, False),
        ({"driver": "nic.example.com"}, False),
    ],
)
def test_a_taint_rule_taints_the_devices_that_it_names(
    selector: dict[str, str], *, tainted: bool
) -> None:
    (thing,) = slices([device("gpu-0")])
    (found,) = read_slice(thing, [rule(**selector)]).devices
    assert found.taints == ((Taint.of(BAD),) if tainted else ())


def test_an_attribute_is_found_by_its_full_name() -> None:
    (thing,) = slices([device("gpu-0", **{"example.com/rack": 7})])
    (found,) = read_slice(thing).devices
    assert found.attribute("gpu.nvidia.com/type") == "gpu"
    assert found.attribute("example.com/rack") == 7
    assert found.attribute("example.com/type") is None
    assert str(found.id) == "gpu.nvidia.com/node-1/gpu-0"
    assert found.id == DeviceId("gpu.nvidia.com", "node-1", "gpu-0")
