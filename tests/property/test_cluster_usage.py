"""What is called free a scheduler can give out, whatever is allocated, tainted and shared."""

from collections import Counter
from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import fuzz
import make
import packing
from consuming import Scheduler
from dra_driver.admin.cluster.usage import ResourceUsage, usage_of
from dra_driver.admin.cluster.view import report, table
from dra_driver.admin.explain.pools import Pool
from dra_driver.devices.model import MigMode
from dra_driver.kube.fields import objects
from dra_driver.slices.consumable import Consumable
from dra_driver.slices.offer.mig import MigOffer, MigSource
from dra_driver.slices.offer.shares import ShareOffer
from dra_driver.slices.project import projection
from published import Object, counter_set, device, part_of, read_pools, shares, slices, used_by

PUBLISHED = projection(make.inventory(*(make.gpu(minor, mig=make.mig()) for minor in range(2))))
OFFERS = packing.offers(PUBLISHED)
KINDS = sorted({one.kind for one in OFFERS})
CARDS = read_pools(slices(PUBLISHED.devices, PUBLISHED.counter_sets))

MIB = 1024**2
SHARED_CARDS = make.inventory(
    make.gpu(0, memory_bytes=15109 * MIB + 4096, memory_reserved_bytes=450 * MIB + 1),
    make.gpu(1, memory_bytes=15360 * MIB),
    make.gpu(2, mig=make.mig(make.mig_device(2)), mig_mode=MigMode.ENABLED),
)
IN_PARTS = {
    mode: [
        one
        for one in projection(
            SHARED_CARDS,
            mig=MigOffer(source=MigSource.EXISTING),
            share=ShareOffer(consumable=Consumable.of(mode)),
        ).devices
        if "allowMultipleAllocations" in one
    ]
    for mode in ("memory", "unlimited", "3")
}
"""By setting: two GPUs and a MIG device of which claims can have parts."""

SENT = {
    "slices": [
        *slices([*shares(2), device("gpu-1", taints=("NoSchedule",))], [counter_set(shares=2)]),
        *slices([device("gpu-0")], generation=2, node="node-2"),
        *slices(IN_PARTS["3"], node="node-3"),
    ],
    "claims": [
        make.claim_object("gpu-0"),
        make.claim_object("gpu-7", pool="node-2"),
        part_of("gpu-0", "a", {"memory": "1Gi", "cores": 20, "shares": 1}, pool="node-3"),
    ],
}

NANO = 10**9
LIMITS = {"a": 4, "b": 3}
NAMES = ("nvidia.com/gpu", "nvidia.com/gpu.shared")
amounts = st.fixed_dictionaries({}, optional={name: st.integers(1, 3) for name in LIMITS})
made_up = st.lists(st.tuples(amounts, st.sampled_from(NAMES), st.booleans()), max_size=7)


def resources(pools: list[tuple[str, Pool]], taken: list[str]) -> dict[str | None, ResourceUsage]:
    claim = make.claim_object(*taken)
    found = usage_of(pools, used_by(claim))
    return {one.resource: one for pool in found.pools for one in pool.resources}


def resource_of(kind: str) -> str:
    """The resource name of a whole GPU or a profile."""
    if kind == packing.WHOLE:
        return "nvidia.com/gpu"
    return f"nvidia.com/mig-{kind.replace('+', '.')}"


def given_out(left: dict[str, dict[str, int]], kind: str, taken: list[str]) -> bool:
    """Allocate one device as the scheduler would; say whether there was one."""
    for offer in OFFERS:
        is_wanted = offer.kind == kind and offer.name not in taken
        if is_wanted and packing.fits(left[offer.counter_set], offer):
            packing.take(left[offer.counter_set], offer, 1)
            taken.append(offer.name)
            return True
    return False


@given(asked=st.lists(st.sampled_from(KINDS), max_size=20), given_back=st.sets(st.integers(0, 19)))
def test_a_scheduler_gives_out_as_many_devices_of_real_cards_as_are_free(
    asked: list[str], given_back: set[int]
) -> None:
    left = {one["name"]: packing.amounts(one["counters"]) for one in PUBLISHED.counter_sets}  # type: ignore[arg-type,index]
    taken: list[str] = []
    for kind in asked:
        given_out(left, kind, taken)
    for index in sorted(given_back & set(range(len(taken))), reverse=True):
        (offer,) = (one for one in OFFERS if one.name == taken[index])
        packing.take(left[offer.counter_set], offer, -1)
        del taken[index]

    found = resources(CARDS, taken)
    used = Counter(one.kind for one in OFFERS if one.name in taken)
    for kind in KINDS:
        numbers = found[resource_of(kind)]
        assert numbers.used == used[kind]
        assert numbers.used + numbers.free <= numbers.offered
        more = list(taken)
        room = {name: dict(counters) for name, counters in left.items()}
        while given_out(room, kind, more):
            pass
        assert numbers.free == len(more) - len(taken)


def most(devices: list[Object], left: dict[str, int]) -> int:
    """The most of these devices that can be allocated together, by trying all ways."""
    for count in range(len(devices), 0, -1):
        for chosen in combinations(devices, count):
            together: Counter[str] = Counter()
            for one in chosen:
                together.update(consumed(one))
            if all(left[name] >= amount for name, amount in together.items()):
                return count
    return 0


def consumed(one: Object) -> dict[str, int]:
    entries = one.get("consumesCounters", [])
    return {
        name: int(each["value"]) for entry in entries for name, each in entry["counters"].items()
    }


@given(facts=made_up, wishes=st.lists(st.integers(0, 6)))
def test_no_allocator_finds_less_than_what_is_offered_and_free(
    facts: list[tuple[dict[str, int], str, bool]], wishes: list[int]
) -> None:
    devices = [
        device(f"gpu-{index}", takes, resourceName=name, taints=("NoSchedule",) if tainted else ())
        for index, (takes, name, tainted) in enumerate(facts)
    ]
    left, taken = dict(LIMITS), []
    for one in (devices[wish] for wish in wishes if wish < len(devices)):
        wanted = consumed(one)
        if one["name"] not in taken and all(left[name] >= n for name, n in wanted.items()):
            left = {name: there - wanted.get(name, 0) for name, there in left.items()}
            taken.append(one["name"])

    found = resources(read_pools(slices(devices, [counter_set(**LIMITS)])), taken)
    for name, numbers in found.items():
        serving = [one for one in devices if one["attributes"]["resourceName"]["string"] == name]
        open_ones = [one for one in serving if one["name"] not in taken and "taints" not in one]
        assert numbers.used == sum(one["name"] in taken for one in serving)
        assert numbers.offered <= most(serving, LIMITS)
        assert numbers.free <= most(open_ones, left)
        # And where any is to be had, it is seen.
        assert (numbers.free > 0) == (most(open_ones, left) > 0)


asked = st.fixed_dictionaries(
    {},
    optional={
        "memory": st.integers(0, 20 * 1024 * MIB),
        "cores": st.integers(0, 100),
        "shares": st.integers(0, 3),
        "multiprocessors": st.integers(0, 40),
    },
)


@given(
    mode=st.sampled_from(sorted(IN_PARTS)),
    wishes=st.lists(st.tuples(st.integers(0, 2), asked), max_size=12),
)
def test_a_scheduler_gives_out_as_much_of_each_capacity_as_is_free(
    mode: str, wishes: list[tuple[int, dict[str, int]]]
) -> None:
    schedulers = [Scheduler(one) for one in IN_PARTS[mode]]
    claims = []
    for number, (which, wanted) in enumerate(wishes):
        consumed = schedulers[which].take(wanted)
        if consumed is not None:
            name = schedulers[which].device["name"]
            claims.append(part_of(name, f"part-{number}", consumed))
    (found,) = usage_of(read_pools(slices(IN_PARTS[mode])), used_by(*claims)).pools

    assert sum(resource.parts for resource in found.resources) == len(claims)
    for one in found.resources:
        if one.offered is not None:
            assert one.offered == one.used + one.free
    of_resource = {"nvidia.com/gpu": schedulers[:2], "nvidia.com/mig-1g.10gb": schedulers[2:]}
    for numbers in found.resources:
        serving = of_resource[numbers.resource or ""]
        for name, one in numbers.capacities.items():
            assert one.used == sum(each.used[name] for each in serving) * NANO
            most = [each.most(name) for each in serving if name in each.device["capacity"]]
            assert (one.free, one.most) == (sum(most) * NANO, max(most) * NANO)
            assert 0 <= one.free <= one.total - one.used
        if numbers.free is not None:
            assert numbers.free == sum(map(given_out_without_a_request, serving))
        else:
            assert mode == "unlimited"
            assert all(each.fitting({}) is not None for each in serving)


def given_out_without_a_request(scheduler: Scheduler) -> int:
    """How many claims more can have a part that ask for nothing; takes what they consume."""
    count = 0
    while scheduler.take({}) is not None:
        count += 1
    return count


@given(fuzz.bent(SENT))
def test_whatever_the_api_server_sends_there_is_an_answer(sent: Any) -> None:
    sent = sent if isinstance(sent, dict) else {}
    claims = objects(sent.get("claims"))
    pools = read_pools(objects(sent.get("slices")))
    found = usage_of(pools, used_by(*claims))

    assert table(found, wide=True).endswith("\n")
    assert report(found).endswith("\n")
    seen = sum(len(pool.allocated) + len(pool.not_published) for pool in found.pools)
    hidden = [pool.pool.name for pool in found.pools if pool.pool.fault]
    unknown = [allocation for allocation in used_by(*claims) if allocation.pool in hidden]
    assert seen + len(found.stray) >= len(used_by(*claims)) - len(unknown)
