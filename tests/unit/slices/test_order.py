"""The order in which devices are offered, and how many more requests it lets fit."""

import pytest

import make
import packing
from dra_driver.devices.model import Gpu, MigMode
from dra_driver.devices.partitions import partitions
from dra_driver.slices.order import in_fill_order, in_packing_order, in_whole_order
from dra_driver.slices.project import projection

H100S = tuple(make.gpu(minor, mig=make.mig()) for minor in range(8))


def starts(profile: str, gpu: Gpu = H100S[0]) -> list[int]:
    ordered = in_packing_order(partitions(gpu))
    return [entry.placement.start for entry in ordered if entry.profile.name == profile]


def test_small_partitions_go_where_no_large_one_can_start() -> None:
    assert starts("1g.10gb") == [6, 5, 4, 3, 2, 1, 0]
    assert starts("1g.20gb") == [6, 4, 2, 0]
    assert starts("2g.20gb") == [4, 2, 0]


def test_half_a_gpu_is_taken_from_the_half_where_only_it_fits() -> None:
    assert starts("3g.40gb") == [4, 0]
    assert starts("4g.40gb") == [0]


def test_what_needs_less_comes_first() -> None:
    ordered = in_packing_order(partitions(H100S[0]))
    names = list(dict.fromkeys(entry.profile.name for entry in ordered))

    assert names == [
        "1g.10gb",
        "1g.10gb+me",
        "1g.20gb",
        "2g.20gb",
        "3g.40gb",
        "4g.40gb",
        "7g.80gb",
    ]


def test_no_partition_is_lost_and_their_order_before_does_not_matter() -> None:
    found = partitions(H100S[0])

    assert set(in_packing_order(found)) == set(found)
    assert in_packing_order(found[::-1]) == in_packing_order(found)


def test_gpus_are_filled_by_address_and_given_out_whole_from_the_other_end() -> None:
    plain = make.gpu(9, mig_mode=MigMode.UNSUPPORTED)

    assert [gpu.minor for gpu in in_fill_order(H100S[::-1])] == list(range(8))
    assert [gpu.minor for gpu in in_whole_order((*H100S[:3], plain), H100S)] == [9, 2, 1, 0]


def lost_by_mix(count: int, load: float) -> dict[str, tuple[int, int, int, int]]:
    """Requests turned away, ours and by name, and their memory, on so many GPUs, by mix."""
    published = projection(make.inventory(*H100S[:count]))
    ours = packing.offers(published)
    names = packing.by_name(ours)
    size = {offer.kind: sum("slice" in name for name in offer.counters) for offer in ours}
    found = {}
    for mix_name, mix in packing.MIXES.items():
        mean = sum(weight * size[kind] for kind, weight in mix.items()) / sum(mix.values())
        outcomes = [
            packing.turned_away(order, published.counter_sets, arrivals)
            for seed in range(2)
            for arrivals in [packing.stream(seed, mix, load=8 * count * load / mean, count=1200)]
            for order in (ours, names)
        ]
        (a, ma), (b, mb) = (map(sum, zip(*outcomes[turn::2], strict=True)) for turn in (0, 1))
        found[mix_name] = a, b, ma, mb
    return found


@pytest.mark.parametrize(("count", "load"), [(1, 0.5), (8, 0.75)])
def test_fewer_requests_find_no_room_than_in_the_order_of_names(count: int, load: float) -> None:
    found = lost_by_mix(count, load)

    for mix, (ours, names, _, _) in found.items():
        # docs/performance.md has these numbers.
        print(f"{count} GPU(s), {mix}: {ours} turned away, {names} by name")  # noqa: T201
        assert ours <= 1.25 * names
    ours, names, memory, memory_by_name = map(sum, zip(*found.values(), strict=True))
    print(f"all: {ours} vs {names} requests, {memory >> 30} vs {memory_by_name >> 30} GiB")  # noqa: T201
    assert ours < 0.96 * names
    assert memory < 0.96 * memory_by_name
