"""CEL over any text: an answer or one of two errors. Regular expressions find what Python's do."""

import re

from hypothesis import given
from hypothesis import strategies as st

from cel_cases import DO_NOT, FAIL, SELECT
from dra_driver.admin.cel import strings
from dra_driver.admin.cel.selector import Selector, Subject
from dra_driver.admin.cel.values import EvaluationError, NotUnderstoodError, Semver

SUBJECT = Subject(driver="gpu.nvidia.com", attributes={"type": "gpu", "index": 3})
PIECES = sorted(
    {piece for text in (*SELECT, *DO_NOT, *FAIL) for piece in re.findall(r"\w+|\W", text)}
)

simple = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "\\w", "\\d", "^", "$", "\\b"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.tuples(inner, inner).map(lambda two: f"({two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{1,}"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
    ),
    max_leaves=6,
)


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_any_text_is_answered_or_refused(text: str) -> None:
    try:
        selector = Selector.of(text)
        assert selector.selects(SUBJECT) in (True, False)
    except NotUnderstoodError:
        return
    except EvaluationError:
        pass
    for fault in selector.faults(SUBJECT):
        assert fault.text


@given(simple, st.text(alphabet="ab1 ", max_size=8))
def test_a_regular_expression_finds_what_python_finds(regex: str, text: str) -> None:
    # Python's `$` also holds before a newline at the end; there is none here.
    assert strings.matches(text, regex) == bool(re.search(regex, text, re.ASCII))


versions = st.tuples(
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from(["", "-a", "-a.1", "-1"]),
).map(lambda parts: f"{parts[0]}.{parts[1]}.{parts[2]}{parts[3]}")


@given(versions, versions, versions)
def test_versions_have_one_order(one: str, two: str, three: str) -> None:
    a, b, c = sorted(map(Semver.parse, (one, two, three)))
    assert a <= b <= c
    assert a <= c
    assert (a == b) == (not a < b and not b < a)


def test_a_release_comes_after_its_candidates() -> None:
    order = ["1.0.0-1", "1.0.0-2", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-beta", "1.0.0", "1.0.1-a"]
    assert sorted(map(Semver.parse, reversed(order))) == list(map(Semver.parse, order))
