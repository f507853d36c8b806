"""What is read of devices for a cluster's usage: what they serve, and what claims consume."""

import pytest

from dra_driver.admin.api.slices import Device
from dra_driver.admin.cluster.usage import closing_taints, resource_of
from published import Object, device, read_pools, slices


def read(entry: Object) -> Device:
    ((_, pool),) = read_pools(slices([entry]))
    (found,) = pool.devices
    return found


def test_only_taints_that_keep_claims_away_count() -> None:
    tainted = device("gpu-0", taints=("NoSchedule", "None", "NoExecute", "SomethingNew"))
    tainted["taints"][0]["value"] = "79"

    assert closing_taints(read(tainted)) == (
        "gpu.nvidia.com/xid=79:NoSchedule",
        "gpu.nvidia.com/xid:NoExecute",
    )


@pytest.mark.parametrize(
    ("attributes", "name"),
    [
        ({"type": "gpu"}, "nvidia.com/gpu"),
        ({"type": "gpu", "resourceName": "nvidia.com/gpu"}, "nvidia.com/gpu"),
        ({"type": "gpu", "resourceName": "nvidia.com/gpu.shared"}, "nvidia.com/gpu.shared"),
        ({"type": "gpu", "sharedAs": "nvidia.com/gpu.shared"}, None),
        ({"type": "mig", "profile": "1g.10gb"}, "nvidia.com/mig-1g.10gb"),
        ({"type": "mig", "profile": "1g.10gb+me"}, "nvidia.com/mig-1g.10gb.me"),
        ({"type": "mig", "profile": "1g.10gb", "sharedAs": "nvidia.com/mig-1g.10gb"}, None),
        ({"type": "vfio"}, None),
        ({}, None),
    ],
)
def test_attributes_say_which_resource_name_a_device_serves(
    attributes: dict[str, str], name: str | None
) -> None:
    wire = {key: {"string": value} for key, value in attributes.items()}
    qualified = {f"gpu.nvidia.com/{key}": value for key, value in wire.items()}

    for written in (wire, qualified):
        assert resource_of(read({"name": "gpu-0", "attributes": written})) == name


@pytest.mark.parametrize(
    ("policy", "default", "least"),
    [
        (None, 40, 0),  # a claim that does not ask has it all
        ({}, 40, 0),
        ({"default": "3"}, 3, 0),
        ({"default": "3", "validRange": {"min": "2", "max": "40", "step": "1"}}, 3, 2),
        ({"default": "3", "validRange": {"max": "40"}}, 3, 0),
        ({"default": "3", "validValues": ["2", "3", "40"]}, 3, 2),
        ({"default": "0", "validValues": ["2", "4"]}, 0, 0),
    ],
)
def test_policies_say_what_claims_consume(policy: object, default: int, least: int) -> None:
    capacity: dict[str, object] = {"value": "40"}
    if policy is not None:
        capacity["requestPolicy"] = policy
    shared = device("gpu-0") | {"allowMultipleAllocations": True, "capacity": {"slots": capacity}}
    one = read(shared)
    assert one.shared
    assert {
        name: (each.total, each.default, each.least) for name, each in one.capacities.items()
    } == {"slots": (40 * 10**9, default * 10**9, least * 10**9)}
