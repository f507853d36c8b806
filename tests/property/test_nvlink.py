"""Whatever links there are: islands are what can be reached."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

import make
from dra_driver.devices.model import Gpu, NvLink
from dra_driver.devices.nvlink import joined

MOST = 9
pairs = st.lists(st.sampled_from(list(combinations(range(MOST), 2))), max_size=20, unique=True)


def gpus_with(links: list[tuple[int, int]], one_sided: set[tuple[int, int]]) -> list[Gpu]:
    """GPUs with the links, some of which only the first GPU says are up."""
    ends: dict[int, list[NvLink]] = {minor: [] for minor in range(MOST)}
    for pair in links:
        for here, there in (pair, pair[::-1]):
            ends[here].append(
                NvLink(
                    number=len(ends[here]),
                    is_active=here == pair[0] or pair not in one_sided,
                    peer=make.gpu(there).pci_address,
                )
            )
    return [make.gpu(minor, nvlinks=tuple(ends[minor])) for minor in range(MOST)]


def reach(start: int, links: list[tuple[int, int]]) -> set[int]:
    found = {start}
    while more := {b for pair in links for a, b in (pair, pair[::-1]) if a in found} - found:
        found |= more
    return found


@given(links=pairs, one_sided=st.sets(st.sampled_from(list(combinations(range(MOST), 2)))))
def test_islands_are_what_can_be_reached(
    links: list[tuple[int, int]], one_sided: set[tuple[int, int]]
) -> None:
    gpus = gpus_with(links, one_sided)
    reached = {gpu.uuid: reach(gpu.minor, links) for gpu in gpus}
    assert joined(gpus) == {
        uuid: make.gpu(min(found)).uuid for uuid, found in reached.items() if len(found) > 1
    }


@given(links=pairs, order=st.permutations(range(MOST)))
def test_the_order_in_which_gpus_are_found_changes_nothing(
    links: list[tuple[int, int]], order: list[int]
) -> None:
    gpus = gpus_with(links, set())
    assert joined([gpus[minor] for minor in order]) == joined(gpus)
