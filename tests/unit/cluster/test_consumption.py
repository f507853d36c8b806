"""Offered, used and free of devices that several claims have parts of."""

import make
from dra_driver.admin.cluster.consumption import CapacityUsage
from dra_driver.admin.cluster.usage import ResourceUsage, usage_of
from dra_driver.admin.explain.pools import Pool
from dra_driver.devices.model import Gpu
from dra_driver.slices.consumable import Consumable
from dra_driver.slices.offer.shares import ShareOffer
from dra_driver.slices.project import projection
from published import Object, counter_set, device, part_of, read_pools, slices, used_by

MIB = 1024**2
GPU, SMALL = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
T4S = [make.gpu(number, memory_bytes=15000 * MIB) for number in range(2)]


def node(mode: str, *gpus: Gpu) -> list[tuple[str, Pool]]:
    share = ShareOffer(consumable=Consumable.of(mode))
    found = projection(make.inventory(*(gpus or T4S)), share=share)
    return read_pools(slices(found.devices, found.counter_sets))


def usage(pools: list[tuple[str, Pool]], *claims: Object, resource: str = GPU) -> ResourceUsage:
    (found,) = usage_of(pools, used_by(*claims)).pools
    return next(one for one in found.resources if one.resource == resource)


def counts(found: ResourceUsage) -> tuple[int | None, int, int | None]:
    return found.offered, found.used, found.free


def amounts(found: ResourceUsage, name: str) -> tuple[int, int, int, int]:
    """What is offered, used, free and free on one device, memory in MiB."""
    one, unit = found.capacities[name], 10**9 * (MIB if name == "memory" else 1)
    return one.total // unit, one.used // unit, one.free // unit, one.most // unit


def test_claims_that_say_how_much_memory_they_need_leave_the_rest_to_others() -> None:
    parts = (
        part_of("gpu-0", "a", {"memory": "4000Mi", "cores": 20}),
        part_of("gpu-0", "b", {"memory": "5000Mi", "cores": 0}),
    )
    found = usage(node("memory"), *parts)

    # Who does not say how much has all of it, and so gets the other GPU only.
    assert counts(found) == (2, 1, 1)
    assert found.parts == 2
    assert amounts(found, "memory") == (30000, 9000, 21000, 15000)
    assert amounts(found, "cores") == (200, 20, 180, 100)


def test_each_claim_has_one_share_or_as_many_as_requested() -> None:
    parts = (
        part_of("gpu-0", "a", {"memory": 0, "cores": 0, "shares": 1}),
        part_of("gpu-0", "b", {"memory": "1000Mi", "cores": 0, "shares": 2}),
    )
    found = usage(node("4"), *parts)

    assert counts(found) == (8, 3, 5)
    assert found.parts == 2
    assert amounts(found, "shares") == (8, 3, 5, 4)
    assert amounts(found, "memory") == (30000, 1000, 29000, 15000)


def test_where_no_share_is_left_no_memory_is_free() -> None:
    found = usage(node("4"), part_of("gpu-0", "a", {"memory": "1000Mi", "shares": 4}))

    assert counts(found) == (8, 4, 4)
    assert amounts(found, "memory") == (30000, 1000, 15000, 15000)
    assert amounts(found, "cores") == (200, 0, 100, 100)


def test_where_each_claim_has_memory_no_cores_are_free_without() -> None:
    every_mib = part_of("gpu-0", "a", {"memory": "15000Mi", "cores": 0})

    assert amounts(usage(node("memory"), every_mib), "cores") == (200, 0, 100, 100)
    assert amounts(usage(node("unlimited"), every_mib), "cores") == (200, 0, 200, 100)


def test_devices_without_cost_are_unlimited() -> None:
    pools = node("unlimited")
    found = usage(pools, part_of("gpu-0", "a", {"memory": "15000Mi", "cores": 100}))

    assert counts(usage(pools)) == (None, 0, None)
    assert counts(found) == (None, 1, None)
    assert amounts(found, "memory") == (30000, 15000, 15000, 15000)


def test_with_each_device_tainted_nothing_is_free_and_all_is_offered() -> None:
    (shared,) = projection(
        make.inventory(T4S[0]), share=ShareOffer(consumable=Consumable.of("unlimited"))
    ).devices
    tainted = dict(shared) | {"taints": [{"key": "sick", "effect": "NoSchedule"}]}
    found = usage(read_pools(slices([tainted])), part_of("gpu-0", "a", {"memory": "1000Mi"}))

    assert counts(found) == (None, 1, 0)
    assert amounts(found, "memory") == (15000, 1000, 0, 0)


def test_a_part_takes_the_counters_of_the_device_once() -> None:
    pools = node("unlimited", make.gpu(0, mig=make.mig()))
    parts = [part_of("gpu-0", name, {"memory": "1Gi"}) for name in ("a", "b")]

    assert counts(usage(pools, resource=SMALL)) == (7, 0, 7)
    assert counts(usage(pools, *parts, resource=SMALL)) == (7, 0, 0)
    assert counts(usage(pools, *parts)) == (None, 2, None)
    in_use = usage(pools, make.claim_object("gpu-0-mig-1g10gb-19-6"))
    assert counts(in_use) == (None, 0, 0)
    assert amounts(in_use, "cores") == (100, 0, 0, 0)


def test_mig_devices_that_exist_have_parts_beside_those_made_on_demand() -> None:
    pools = node("memory", make.gpu(0, mig=make.mig(make.mig_device())))
    ((_, pool),) = pools
    (existing,) = (one.id.device for one in pool.devices if one.shared)
    found = usage(pools, part_of(existing, "a", {"memory": "1Gi"}), resource=SMALL)

    assert counts(found) == (7, 1, 6)
    total, used, free, most = amounts(found, "memory")
    assert (used, free) == (1024, total - 1024)
    assert most == free


def test_a_device_allocated_before_it_had_parts_is_fully_used() -> None:
    found = usage(node("4"), make.claim_object("gpu-0"))

    assert counts(found) == (8, 4, 4)
    assert amounts(found, "memory") == (30000, 15000, 15000, 15000)
    assert amounts(found, "shares") == (8, 4, 4, 4)


def test_a_device_that_has_no_parts_any_more_is_not_free_while_claims_have_some() -> None:
    parts = [part_of("gpu-0", name, {"memory": "1Gi"}) for name in ("a", "b")]
    found = usage(node("disabled"), *parts)

    assert counts(found) == (2, 1, 1)
    assert found.capacities == {}


def test_a_device_without_capacities_is_given_to_any_number_of_claims() -> None:
    bare = device("gpu-0") | {"allowMultipleAllocations": True}
    found = usage(read_pools(slices([bare])), part_of("gpu-0", "a", {}))

    assert counts(found) == (None, 1, None)
    assert found.capacities == {}


def test_a_shrunk_device_has_nothing_free_and_never_less() -> None:
    """Such as after an update of the GPU driver that reserves more memory."""
    found = usage(node("memory", T4S[0]), part_of("gpu-0", "a", {"memory": "20000Mi"}))

    assert counts(found) == (1, 1, 0)
    assert amounts(found, "memory") == (15000, 20000, 0, 0)


def test_incompatible_devices_are_not_offered_together() -> None:
    capacity = {"slots": {"value": "4", "requestPolicy": {"default": "1"}}}
    either = [
        device(name, {"engines": 2}) | {"allowMultipleAllocations": True, "capacity": capacity}
        for name in ("gpu-0", "gpu-1")
    ]
    found = usage(read_pools(slices(either, [counter_set(engines=3)])))

    assert counts(found) == (4, 0, 4)
    nano = 10**9
    assert found.capacities == {
        "slots": CapacityUsage(total=4 * nano, used=0, free=4 * nano, most=4 * nano)
    }
