"""The order in which devices are offered, and how many more requests it lets fit."""

import pytest

import make
import packing
from dra_driver.devices.mig.partitions import partitions
from dra_driver.devices.model import Gpu, MigMode
from dra_driver.slices.order import in_fill_order, in_packing_order, in_whole_order
from dra_driver.slices.project import projection

H100S = tuple(make.gpu(minor, mig=make.mig()) for minor in range(8))


def starts(profile: str, gpu: Gpu = H100S[0]) -> list[int]:
    ordered = in_packing_order(gpu, partitions(gpu))
    return [entry.placement.start for entry in ordered if entry.profile == profile]


def test_small_partitions_go_where_no_large_one_can_start() -> None:
    assert starts("1g.10gb") == [6, 5, 4, 3, 2, 1, 0]
    assert starts("1g.20gb") == [6, 4, 2, 0]
    assert starts("2g.20gb") == [4, 2, 0]


def test_half_a_gpu_is_taken_from_the_half_where_only_it_fits() -> None:
    assert starts("3g.40gb") == [4, 0]
    assert starts("4g.40gb") == [0]


def test_smaller_needs_come_first() -> None:
    ordered = in_packing_order(H100S[0], partitions(H100S[0]))
    names = list(dict.fromkeys(entry.profile for entry in ordered))

    assert names == ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]


def test_no_partition_is_lost_and_their_order_before_does_not_matter() -> None:
    gpu = H100S[0]
    found = partitions(gpu)

    assert set(in_packing_order(gpu, found)) == set(found)
    assert in_packing_order(gpu, found[::-1]) == in_packing_order(gpu, found)


def test_gpus_are_filled_by_address_and_given_out_whole_from_the_other_end() -> None:
    plain = make.gpu(9, mig_mode=MigMode.UNSUPPORTED)

    assert [gpu.minor for gpu in in_fill_order(H100S[::-1])] == list(range(8))
    assert [gpu.minor for gpu in in_whole_order((*H100S[:3], plain), H100S)] == [9, 2, 1, 0]


def test_neither_position_nor_minor_number_nor_uuid_takes_part_in_the_order() -> None:
    gpus = make.node_gpus(mig=make.mig())
    ascending = [make.gpu(number).pci_address for number in range(4)]

    assert [gpu.pci_address for gpu in in_fill_order(gpus[::-1])] == ascending
    whole = [gpu.pci_address for gpu in in_whole_order(gpus[::-1], ())]
    assert whole == ascending
    divided = [gpu.pci_address for gpu in in_whole_order(gpus[::-1], gpus)]
    assert divided == ascending[::-1]


def card(minor: int, name: str, capability: tuple[int, int], gib: int | None) -> Gpu:
    return make.gpu(
        minor,
        product_name=name,
        cuda_compute_capability=capability,
        memory_bytes=None if gib is None else gib * 1024**3,
        mig_mode=MigMode.UNSUPPORTED,
    )


CARDS = (
    card(0, "V100 32GB", (7, 0), 32),
    card(1, "V100 16GB", (7, 0), 16),
    card(2, "A100 40GB", (8, 0), 40),
    card(3, "L40S", (8, 9), 48),
    card(4, "T4", (7, 5), 16),
    card(5, "P100", (6, 0), 16),
    card(6, "P4", (6, 1), 8),
    card(7, "P40", (6, 1), 24),
    card(8, "H100", (9, 0), 80),
    card(9, "L4", (8, 9), 24),
)
"""In the order of their PCI addresses."""


def test_the_least_capable_card_comes_first() -> None:
    ordered = [gpu.product_name for gpu in in_whole_order(CARDS, ())]

    assert ordered == [
        "P4",
        "P40",
        "P100",
        "T4",
        "V100 16GB",
        "V100 32GB",
        "L4",
        "L40S",
        "A100 40GB",
        "H100",
    ]


def test_a_card_that_can_be_divided_comes_after_better_ones_that_cannot() -> None:
    divided = make.gpu(3, cuda_compute_capability=(8, 0), mig=make.mig())
    plain = card(9, "L40S", (8, 9), 48)

    assert in_whole_order((divided, plain), [divided]) == (plain, divided)


def test_the_least_capable_divisible_card_comes_first_too() -> None:
    a30 = make.gpu(0, cuda_compute_capability=(8, 0), memory_bytes=24 * 1024**3, mig=make.mig())
    gpus = (a30, *H100S[1:3])

    assert in_whole_order(gpus, gpus) == (a30, H100S[2], H100S[1])


def test_a_card_with_the_memory_of_its_host_is_the_last_of_its_generation() -> None:
    gpus = (card(0, "GB10", (12, 1), None), card(1, "RTX PRO 4500", (12, 1), 32))

    assert in_whole_order(gpus, ()) == (gpus[1], gpus[0])


def test_whole_gpus_are_published_in_that_order() -> None:
    found = projection(make.inventory(CARDS[0], CARDS[6], CARDS[4]))
    assert [device["name"] for device in found.devices] == ["gpu-6", "gpu-4", "gpu-0"]


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
