"""What of a spec is not as it was asked for."""

import pytest

from dra_driver.slices.publish.writes import differences


def said(asked: object, actual: object) -> list[str]:
    return [str(difference) for difference in differences(asked, actual)]


def test_equal_specs_differ_in_nothing() -> None:
    spec = {"devices": [{"name": "a", "attributes": {"x": {"int": 1}}}], "pool": {"generation": 0}}
    assert said(spec, spec) == []


def test_dropped_changed_and_added_fields_are_distinguished() -> None:
    asked = {"devices": [{"name": "a", "taints": [{"key": "k"}], "attributes": {"x": {"int": 1}}}]}
    actual = {"devices": [{"name": "a", "attributes": {"x": {"int": 2}}, "new": True}]}
    assert said(asked, actual) == [
        "spec.devices[0].attributes.x.int changed",
        "spec.devices[0].new added",
        "spec.devices[0].taints dropped",
    ]


def test_lists_of_other_lengths_are_changed_as_a_whole() -> None:
    assert said({"devices": [1, 2]}, {"devices": [1]}) == ["spec.devices changed"]


def test_empty_and_absent_are_the_same() -> None:
    assert said({"devices": [], "a": {}, "b": None}, {}) == []
    assert said({}, {"devices": []}) == []


def test_false_and_zero_are_not_absent() -> None:
    assert said({"b": False}, {}) == ["spec.b dropped"]
    assert said({}, {"generation": 0}) == ["spec.generation added"]


def test_a_bool_is_not_a_number() -> None:
    assert said({"x": 1}, {"x": True}) == ["spec.x changed"]


@pytest.mark.parametrize("key", ["capacity", "counters"])
def test_quantities_are_compared_by_value(key: str) -> None:
    assert said({key: {"memory": {"value": "80Gi"}}}, {key: {"memory": {"value": "81920Mi"}}}) == []
    assert said({key: {"m": {"value": "1"}}}, {key: {"m": {"value": "2"}}}) == [
        f"spec.{key}.m.value changed"
    ]
    assert said({key: {"m": {"value": "x"}}}, {key: {"m": {"value": "1"}}}) != []


def test_strings_elsewhere_are_compared_as_strings() -> None:
    asked, actual = (
        {"attributes": {"x": {"string": "1k"}}},
        {"attributes": {"x": {"string": "1000"}}},
    )
    assert said(asked, actual) == ["spec.attributes.x.string changed"]
