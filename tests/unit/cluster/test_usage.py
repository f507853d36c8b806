"""Offered, used and free, where devices share hardware and where they do not."""

import make
from dra_driver.admin.api.allocations import Allocation
from dra_driver.admin.cluster.usage import PoolUsage, usage_of
from dra_driver.admin.explain.pools import Pool
from dra_driver.slices.project import projection
from published import counter_set, device, read_pools, shares, slices, used_by

GPU, SMALL, HALF = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"

Numbers = dict[str | None, tuple[int, int, int]]


def has(*devices: str, pool: str = "node-1", name: str = "claim") -> list[Allocation]:
    claim = make.claim_object(*devices, pool=pool, name=name)
    return used_by(claim)


def one_pool(pools: list[tuple[str, Pool]], allocations: list[Allocation]) -> PoolUsage:
    (found,) = usage_of(pools, allocations).pools
    return found


def numbers(pools: list[tuple[str, Pool]], *devices: str) -> Numbers:
    found = one_pool(pools, has(*devices))
    return {
        resource.resource: (resource.offered, resource.used, resource.free)
        for resource in found.resources
    }


def h100s(count: int) -> list[tuple[str, Pool]]:
    gpus = (make.gpu(minor, mig=make.mig()) for minor in range(count))
    published = projection(make.inventory(*gpus))
    return read_pools(slices(published.devices, published.counter_sets))


SHARES = read_pools(slices(shares(10), [counter_set(shares=10)]))


def test_one_names_allocations_reduce_all_names() -> None:
    found = numbers(h100s(2), "gpu-1", "gpu-0-mig-3g40gb-9-4")

    assert found[GPU] == (2, 1, 0)
    assert found[SMALL] == (14, 0, 4)
    assert found[HALF] == (4, 1, 1)
    assert found["nvidia.com/mig-7g.80gb"] == (2, 0, 0)


def test_whole_gpus_and_shares_under_one_name_are_counted_together() -> None:
    pools = read_pools(slices([*shares(4, GPU), device("gpu-1")], [counter_set(shares=4)]))

    assert numbers(pools, "gpu-0-share-2")[GPU] == (5, 1, 4)


def test_a_device_that_two_claims_share_is_used_once() -> None:
    twice = [*has("gpu-0-share-0", name="a"), *has("gpu-0-share-0", name="b")]
    found = one_pool(SHARES, twice)

    assert [(resource.used, resource.free) for resource in found.resources] == [(1, 9), (0, 0)]
    assert [one.allocation.claim for one in found.allocated] == ["default/a", "default/b"]


def test_a_tainted_device_is_offered_but_not_free() -> None:
    tainted = [device("gpu-0", taints=("NoExecute",)), device("gpu-1", taints=("None",))]
    pools = read_pools(slices(tainted))

    assert numbers(pools) == {GPU: (2, 0, 1)}
    assert [one.id.device for one in one_pool(pools, []).tainted] == ["gpu-0"]
    assert numbers(pools, "gpu-0") == {GPU: (2, 1, 1)}


def test_allocations_of_a_shared_pool_count_on_their_own_node() -> None:
    (squatter,) = slices([device("gpu-0")], node="evil")
    squatter["spec"]["pool"] |= {"name": "node-1", "generation": 2**62}
    pools = read_pools([squatter, *slices([device("gpu-0"), device("gpu-1")])])
    found = usage_of(pools, has("gpu-0")).pools
    used = {(one.node, one.pool.name): one.resources[0].used for one in found}
    assert used == {("evil", "node-1"): 0, ("node-1", "node-1"): 1}


def test_offered_devices_are_used_blocked_or_free() -> None:
    pools = h100s(2)
    tainted = read_pools(slices([device("gpu-0", taints=("NoSchedule",)), device("gpu-1")]))
    for there, taken in ((pools, ("gpu-1", "gpu-0-mig-3g40gb-9-4")), (SHARES, ("gpu-0",))):
        for one in one_pool(there, has(*taken)).resources:
            assert one.blocked is not None
            assert one.offered == one.used + one.blocked + (one.free or 0)
            assert one.blocked >= 0
    (of_tainted,) = one_pool(tainted, has("gpu-1")).resources
    assert (of_tainted.offered, of_tainted.used, of_tainted.blocked) == (2, 1, 1)
    (small,) = (
        resource
        for resource in one_pool(pools, has("gpu-1")).resources
        if resource.resource == SMALL
    )
    assert (small.offered, small.used, small.blocked, small.free) == (14, 0, 7, 7)
