"""The counters that are published keep the same devices apart as all that there could be."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dra_driver.slices import counters

NAMES = "abcde"

amounts = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 4))


@given(
    consumers=st.lists(amounts, min_size=1, max_size=6),
    spare=st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3)),
    chosen=st.sets(st.integers(0, 5)),
)
def test_what_the_telling_counters_allow_all_of_them_allow(
    consumers: list[dict[str, int]], spare: dict[str, int], chosen: set[int]
) -> None:
    most = {name: max(consumer.get(name, 0) for consumer in consumers) for name in NAMES}
    left = {name: most[name] + spare.get(name, 0) for name in NAMES}
    told = counters.telling(consumers, left)

    together: Counter[str] = Counter()
    for number in chosen & set(range(len(consumers))):
        together.update(consumers[number])
    allowed = counters.fits(counters.of(told, together), counters.of(told, left))
    assert allowed == counters.fits(together, left)
    # And none of them could be left out as well.
    assert counters.telling([counters.of(told, consumer) for consumer in consumers], left) == told


@given(
    possible=st.lists(amounts, min_size=1, max_size=6),
    others=st.lists(amounts, max_size=3),
    spare=st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3)),
    chosen=st.sets(st.integers(0, 5)),
)
def test_what_a_set_allows_beside_what_others_made_all_counters_allow(
    possible: list[dict[str, int]],
    others: list[dict[str, int]],
    spare: dict[str, int],
    chosen: set[int],
) -> None:
    most = {name: max(one.get(name, 0) for one in possible) for name in NAMES}
    everything = {name: most[name] + spare.get(name, 0) for name in NAMES}
    left = {
        name: max(0, amount - sum(other.get(name, 0) for other in others))
        for name, amount in everything.items()
    }
    offered = [one for one in possible if counters.fits(one, left)]
    told = counters.to_publish(possible, offered, everything, left)

    together: Counter[str] = Counter()
    for number in chosen & set(range(len(offered))):
        together.update(offered[number])
    allowed = counters.fits(counters.of(told, together), told)
    assert allowed == counters.fits(together, left)
    # What others made can be in use as well, all of it: that takes nothing from what is offered.
    names = counters.of_others(others, told, everything)
    for one in others:
        together.update(counters.of(names, one))
    assert counters.fits(counters.of(told, together), told) == allowed
