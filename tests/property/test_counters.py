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
    most = {name: max(one.get(name, 0) for one in consumers) for name in NAMES}
    left = {name: most[name] + spare.get(name, 0) for name in NAMES}
    told = counters.telling(consumers, left)

    together: Counter[str] = Counter()
    for number in chosen & set(range(len(consumers))):
        together.update(consumers[number])
    allowed = counters.fits(counters.of(told, together), counters.of(told, left))
    assert allowed == counters.fits(together, left)
    # And none of them could be left out as well.
    assert counters.telling([counters.of(told, one) for one in consumers], left) == told
