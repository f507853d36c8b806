"""Quantities: canonical text loses nothing and is a fixed point."""

import re

from hypothesis import given
from hypothesis import strategies as st

from resource_nvidia_com.quantity import PATTERN, Format, Quantity

quantities = st.builds(
    Quantity,
    st.integers(min_value=-(2**63 - 1) * 10**9, max_value=(2**63 - 1) * 10**9),
    st.sampled_from(Format),
)
texts = st.from_regex(
    r"\A[+-]?([0-9]{1,30}(\.[0-9]{0,12})?|\.[0-9]{1,12})([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?\Z"
)


@given(quantities)
def test_canonical_text_reads_back_as_the_same_value(quantity: Quantity) -> None:
    assert Quantity.parse(str(quantity)) == quantity


@given(texts)
def test_canonical_text_is_a_fixed_point(text: str) -> None:
    once = str(Quantity.parse(text))
    assert str(Quantity.parse(once)) == once


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused_with_a_value_error(text: str) -> None:
    try:
        Quantity.parse(text)
    except ValueError as error:
        assert repr(text) in str(error)  # noqa: PT017 - both outcomes are right


@given(texts | st.text(alphabet="0123456789.+-eEiKMGnumk ", max_size=8))
def test_the_pattern_fits_exactly_what_is_read(text: str) -> None:
    try:
        Quantity.parse(text)
    except ValueError:
        assert not re.fullmatch(PATTERN, text)
    else:
        assert re.fullmatch(PATTERN, text)
