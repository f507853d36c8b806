"""What is read of ResourceSlices: the newest whole generation, its order, what devices serve."""

import pytest

from dra_driver.admin.cluster.pools import read_pools, resource_name
from published import SET, counter_set, device, slices

PAIR = [device("gpu-0"), device("gpu-1")]
PARTS = [device("gpu-0", {"memory": "80Gi"}), device("half", {"memory": "40Gi"}, type="mig")]


def test_a_pool_has_the_devices_of_its_slices_in_the_order_of_the_slices_names() -> None:
    many = [device(f"gpu-{number}") for number in range(70)]
    (pool,) = read_pools(reversed(slices(many)))

    assert (pool.name, pool.node, pool.problem) == ("node-1", "node-1", None)
    assert [one.name for one in pool.devices] == [one["name"] for one in many]


def test_counters_are_read_exactly_whatever_their_unit() -> None:
    sets = [counter_set(memory="79.5Gi", engines="1500m")]
    (pool,) = read_pools(slices(PARTS, sets))

    nano = 10**9
    assert pool.counters == {
        (SET, "memory"): (80 * 1024**3 - 512 * 1024**2) * nano,
        (SET, "engines"): 3 * nano // 2,
    }
    assert pool.devices[1].consumes == {(SET, "memory"): 40 * 1024**3 * nano}


def test_counters_may_stand_in_one_slice_with_the_devices() -> None:
    (one,) = slices(PAIR)
    one["spec"] |= {"devices": PARTS, "sharedCounters": [counter_set(memory="80Gi")]}
    (pool,) = read_pools([one])

    assert pool.problem is None
    assert len(pool.devices) == 2


@pytest.mark.parametrize("newest_first", [True, False])
def test_of_two_generations_the_newer_one_counts(newest_first: bool) -> None:
    old, new = slices(PAIR), slices(PAIR[:1], generation=2)
    old[0]["metadata"]["name"] = "an-old-name"
    (pool,) = read_pools([*new, *old] if newest_first else [*old, *new])

    assert [one.name for one in pool.devices] == ["gpu-0"]
    assert pool.problem is None


def test_a_generation_of_which_slices_are_missing_is_incomplete() -> None:
    (pool,) = read_pools(slices(PARTS, [counter_set(memory="80Gi")], generation=7)[1:])

    assert pool.problem is not None
    assert pool.problem.startswith("1 of 2 ResourceSlices of generation 7 are complete")


def test_a_name_that_comes_twice_makes_a_pool_invalid() -> None:
    (one,) = slices(PAIR)
    one["spec"]["devices"] = [PAIR[0], PAIR[0]]
    (pool,) = read_pools([one])

    assert pool.problem == "two devices are named gpu-0"


def test_counters_that_are_not_there_make_a_pool_invalid() -> None:
    (one,) = slices(PAIR)
    one["spec"]["devices"] = PARTS
    (pool,) = read_pools([one])

    assert pool.problem == "device gpu-0 consumes counters that are not published"


def test_only_taints_that_keep_claims_away_count() -> None:
    tainted = device("gpu-0", taints=("NoSchedule", "None", "NoExecute", "SomethingNew"))
    tainted["taints"][0]["value"] = "79"
    (pool,) = read_pools(slices([tainted]))

    assert pool.devices[0].taints == (
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

    assert resource_name(wire) == resource_name(qualified) == name


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
def test_what_claims_consume_of_a_capacity_its_policy_says(
    policy: object, default: int, least: int
) -> None:
    capacity: dict[str, object] = {"value": "40"}
    if policy is not None:
        capacity["requestPolicy"] = policy
    shared = device("gpu-0") | {"allowMultipleAllocations": True, "capacity": {"slots": capacity}}
    (pool,) = read_pools(slices([shared]))

    (one,) = pool.devices
    assert one.allows_multiple
    assert {
        name: (each.total, each.default, each.least) for name, each in one.capacities.items()
    } == {"slots": (40 * 10**9, default * 10**9, least * 10**9)}
