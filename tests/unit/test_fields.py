"""Fields of JSON objects: what is there, and what comes back where it is missing or odd."""

import pytest

from dra_driver.admin.api.objects import full_name, texts
from dra_driver.kube.fields import at, entries, mapping, number, objects, text, texts_by_name

ODD = (None, True, 3, 2.5, "words", "", [], ["one"], {}, {"key": "value"})
"""What may stand in a field."""


def test_a_field_is_found_below_its_keys() -> None:
    thing = {"spec": {"pool": {"name": "n1 \u202e", "generation": 3, "odd": None}}}
    assert at(thing, "spec", "pool", "odd") is None
    assert mapping(thing, "spec", "pool") is thing["spec"]["pool"]
    assert text(thing, "spec", "pool", "name") == "n1 \u202e"
    assert number(thing, "spec", "pool", "generation") == 3


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_values_of_another_type_count_as_missing(odd: object) -> None:
    for holder in ({"field": odd}, odd, {"other": {}}):
        found = holder.get("field") if isinstance(holder, dict) else None
        assert mapping(holder, "field") == (found if isinstance(found, dict) else {})
        assert text(holder, "field") == (found if isinstance(found, str) else "")
        assert number(holder, "field", default=7) == (found if isinstance(found, int) else 7)
        assert list(entries(holder, "field")) == (found if isinstance(found, list) else [])
        assert text(holder, "field", "key", "deeper") == ""


def test_a_list_gives_its_objects_or_all_of_it_as_text() -> None:
    mixed = {"items": [{"name": "a"}, None, "b", 3, ["c"], {}]}
    assert objects(mixed, "items") == ({"name": "a"}, {})
    assert objects(mixed["items"]) == ({"name": "a"}, {})
    assert texts({"items": ["b", 3, None]}, "items") == ("b", "3", "None")


def test_labels_are_texts_whatever_stands_there() -> None:
    assert texts_by_name({"labels": {"a": "1", "b": 2}}, "labels") == {"a": "1", "b": "2"}
    assert texts_by_name({"labels": ["a"]}, "labels") == {}


def test_a_full_name_has_two_parts() -> None:
    assert full_name({"metadata": {"namespace": "team", "name": "claim"}}) == "team/claim"
    assert full_name({}) == "/"
