"""Dataclasses of the driver are those of the standard library, but for how they are made."""

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from dra_driver.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """One of ours."""

    name: str
    size: int = 1
    note: str = dataclasses.field(default="", compare=False, repr=False)
    parts: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Theirs:
    name: str
    size: int = 1
    note: str = dataclasses.field(default="", compare=False, repr=False)
    parts: tuple[Any, ...] = ()


VALUES: list[dict[str, Any]] = [
    {"name": "a"},
    {"name": "a", "note": "b"},
    {"name": "a", "size": 2},
    {"name": "a", "parts": (1, "x")},
]


@pytest.mark.parametrize("one", VALUES)
@pytest.mark.parametrize("other", VALUES)
def test_equality_and_hashes_go_by_the_same_fields(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert (Ours(**one) == Ours(**other)) == (Theirs(**one) == Theirs(**other))
    same = hash(Theirs(**one)) == hash(Theirs(**other))
    assert (hash(Ours(**one)) == hash(Ours(**other))) == same


@pytest.mark.parametrize("one", VALUES)
def test_it_is_shown_copied_and_replaced_in_the_same_way(one: dict[str, Any]) -> None:
    ours = Ours(**one)
    assert repr(ours) == repr(Theirs(**one)).replace("Theirs", "Ours")
    assert copy.deepcopy(ours) == pickle.loads(pickle.dumps(ours)) == ours  # noqa: S301 (our own)
    assert dataclasses.replace(ours, size=9) == Ours(**one | {"size": 9})
    assert dataclasses.asdict(ours) == dataclasses.asdict(Theirs(**one))


def test_values_of_another_class_differ() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class More(Ours):
        more: int = 0

    assert Ours(name="a") != Theirs(name="a")
    assert Ours(name="a") != More(name="a")
    assert More(name="a") == More(name="a", note="x")
    assert More(name="a") != More(name="a", more=1)


def test_there_is_no_other_attribute() -> None:
    value: Any = Ours(name="a")
    with pytest.raises(AttributeError):
        value.other = 1


def test_one_that_can_change_has_no_hash_and_one_by_identity_has_its_own() -> None:
    @dataclass(slots=True)
    class Box:
        value: int

    @dataclass(frozen=True, slots=True, eq=False)
    class Thing:
        value: int

    assert Box(1) == Box(1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(Box(1))
    assert Thing(1) != Thing(1)
    assert len({Thing(1), Thing(1)}) == 2


def test_what_a_class_says_itself_stays() -> None:
    @dataclass(frozen=True, slots=True)
    class Word:
        text: str

        def __repr__(self) -> str:
            return self.text

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Word) and other.text.lower() == self.text.lower()

        def __hash__(self) -> int:
            return hash(self.text.lower())

    assert repr(Word("a")) == "a"
    assert len({Word("a"), Word("A")}) == 1


def test_one_without_fields_and_one_in_itself() -> None:
    @dataclass(frozen=True, slots=True)
    class Empty:
        pass

    @dataclass(slots=True)
    class Ring:
        inner: object = None

    assert Empty() == Empty()
    assert len({Empty(), Empty()}) == 1
    ring = Ring()
    ring.inner = ring
    assert repr(ring).endswith("Ring(inner=...)")
