import json

import pytest

from dra_driver.admin.convert.manifests import as_written
from dra_driver.admin.validate.node_configs import place_within
from dra_driver.kube.manifest import BrokenManifestError, Document, Place, read_documents
from resource_nvidia_com.problems import DuplicateKeys, Path


def only(text: str) -> Document:
    (document,) = read_documents(text)
    return document


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1", {"a": 1}),
        (
            "a: -0x10\nb: 010\nc: 0b11\nd: 1_000\ne: +5",
            {"a": -16, "b": 8, "c": 3, "d": 1000, "e": 5},
        ),
        ("a: 1.5\nb: -2.0e+3", {"a": 1.5, "b": -2000.0}),
        ("a: yes\nb: Off\nc: TRUE", {"a": True, "b": False, "c": True}),
        ("a: ~\nb:\nc: null", {"a": None, "b": None, "c": None}),
        ("a: '1'\nb: \"yes\"", {"a": "1", "b": "yes"}),
        ("0: a\ntrue: b\n1.5: c", {"0": "a", "true": "b", "1.5": "c"}),
        ("a: 2026-11-20\nb: 1:30\nc: .inf", {"a": "2026-11-20", "b": "1:30", "c": ".inf"}),
        ("- [1, {a: b}]", [[1, {"a": "b"}]]),
        ("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}),
        ("a: &x {b: 1, c: 2}\nd: {<<: *x, c: 3}", {"a": {"b": 1, "c": 2}, "d": {"c": 3, "b": 1}}),
        (
            "a: &x {b: 1}\nc: &y {b: 2}\nd: {<<: [*x, *y]}",
            {"a": {"b": 1}, "c": {"b": 2}, "d": {"b": 1}},
        ),
        ("a: |\n  two\n  lines\n", {"a": "two\nlines\n"}),
    ],
)
def test_values_are_those_that_kubectl_would_send(text: str, value: object) -> None:
    assert only(text).value == value


def test_json_is_read_as_well() -> None:
    value = {"a": [1, 2.5, None, True, "x"], "b": {"c": {}}}
    assert only(json.dumps(value, indent=4)).value == value


def test_empty_documents_are_passed_over() -> None:
    text = "---\n---\n# nothing\n---\na: 1\n---\n---\nb: 2\n"
    assert [document.value for document in read_documents(text)] == [{"a": 1}, {"b": 2}]
    assert list(read_documents("")) == []


def test_a_duplicate_key_is_remembered() -> None:
    value = only("a: {b: 1, b: 2}").value
    assert isinstance(value, dict)
    assert isinstance(value["a"], DuplicateKeys)
    assert value["a"].duplicates == ("b",)
    assert value["a"] == {"b": 2}


def test_a_key_that_overrides_a_merged_one_is_not_duplicate() -> None:
    value = only("a: &x {b: 1}\nc: {<<: *x, b: 2}").value
    assert isinstance(value, dict)
    assert not isinstance(value["c"], DuplicateKeys)


TEXT = """\
# comment
spec:
  list:
  - one: 1
  -   two: 2
      three: {four: 4}
"""


@pytest.mark.parametrize(
    ("path", "line", "column"),
    [
        ((), 2, 1),
        (("spec",), 2, 1),
        (("spec", "list"), 3, 3),
        (("spec", "list", 0), 4, 5),
        (("spec", "list", 1, "two"), 5, 7),
        (("spec", "list", 1, "three", "four"), 6, 15),
        (("spec", "list", 1, "three", "missing"), 6, 7),
        (("spec", "list", 9, "two"), 3, 3),
    ],
)
def test_a_part_stands_at_its_key_and_a_missing_one_above(
    path: Path, line: int, column: int
) -> None:
    assert only(TEXT).place(path) == Place(line=line, column=column)


def test_a_merged_part_stands_where_it_is_written() -> None:
    document = only("a: &x\n  b: 1\nc:\n  <<: *x\n")
    assert document.place(("c", "b")) == Place(line=2, column=3)


def test_the_second_of_two_equal_keys_is_reported() -> None:
    assert only("a: 1\nb: 2\na: 3\n").place(("a",)) == Place(line=3, column=1)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: [1\nb: 2\n", Place(line=2, column=2)),
        ("a: 1\n\tb: 2\n", Place(line=2, column=1)),
        ("a: b: c\n", Place(line=1, column=5)),
        ("a: *nowhere\n", Place(line=1, column=4)),
        ("a: x\nb: \x00\n", Place(line=2, column=4)),
        ("a: &x [*x]\n", Place(line=1, column=4)),
        ("replicas: {{ .Values.n }}\n", Place(line=1, column=12)),
        ('a: "\\UFFFFFFFF"\n', Place(line=1, column=7)),
        (f"%YAML 1.{'1' * 5000}\n---\na\n", Place(line=1, column=9)),
        ("a: &x {<<: *x}\n", Place(line=1, column=4)),
    ],
)
def test_invalid_yaml_is_refused_with_its_place(text: str, place: Place) -> None:
    with pytest.raises(BrokenManifestError) as caught:
        list(read_documents(text))
    assert caught.value.place == place


def test_references_to_one_part_build_it_once() -> None:
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 10)]
    value = only("\n".join(lines)).value
    assert isinstance(value, dict)
    assert value["a9"][0] is value["a9"][1]


LAUGHS = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)]
MERGES = ["a0: &a0 {k: 1}"] + [f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 60)]
CHAIN = ["a0: &a0 {k: 1}"] + [f"a{n}: &a{n} {{<<: *a{n - 1}, k{n}: 1}}" for n in range(1, 2000)]


@pytest.mark.parametrize("lines", [LAUGHS, MERGES, CHAIN], ids=["lists", "merges", "a chain"])
def test_anchors_that_grow_a_short_text_into_a_huge_value_are_refused(lines: list[str]) -> None:
    with pytest.raises(
        BrokenManifestError, match="anchors and references make this value too large"
    ):
        list(read_documents("\n".join(lines)))


def test_a_missing_part_is_searched_once_in_merged_maps() -> None:
    lines = [*MERGES[:10], "b:", "  <<: [*a9, *a9]"]
    assert only("\n".join(lines)).place(("b", "missing")) == Place(line=11, column=1)


@pytest.mark.parametrize(
    "text", ["[" * 5000, "{a: " * 3000, "- " * 3000, "[" * 101 + "]" * 101, "? " * 500]
)
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(BrokenManifestError, match="nested too deep"):
        list(read_documents(text))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("!!int one", "one"),
        ("!!int ''", ""),
        ("!!float x", "x"),
        ("!!bool maybe", "maybe"),
        ("0b_", "0b_"),
        ("1" * 5000, "1" * 5000),
    ],
)
def test_text_that_looks_like_a_number_stays_text(text: str, value: object) -> None:
    assert only(text).value == value


BLOCKS = """\
data:
  literal: |
    first: 1

    second: 2
  indented: |2-
     x
  folded: >
    text
"""


@pytest.mark.parametrize(
    ("key", "inner", "place"),
    [
        ("literal", Place(line=1, column=1), Place(line=3, column=5)),
        ("literal", Place(line=3, column=9), Place(line=5, column=13)),
        ("indented", Place(line=1, column=2), Place(line=7, column=6)),
        ("folded", Place(line=1, column=1), None),
        ("missing", Place(line=1, column=1), None),
    ],
)
def test_a_place_in_a_block_of_text_is_one_in_the_file(
    key: str, inner: Place, place: Place | None
) -> None:
    assert place_within(only(BLOCKS), ("data", key), inner) == place


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("# one\na: 1\n---\n# two\nb: 2\n", ["a: 1\n", "b: 2\n"]),
        ("  a: 1\n  b: 2\n", ["  a: 1\n  b: 2\n"]),
        ("--- {a: 1}\n---\n- b # here\n", ["{a: 1}", "- b # here\n"]),
        ("--- &x\na: [&x2 1]\n", ["&x\na: [&x2 1]\n"]),
        ("a: |+\n  b\n\n---\n\nc: 1", ["a: |+\n  b\n\n", "c: 1"]),
    ],
)
def test_a_document_knows_its_text(text: str, parts: list[str]) -> None:
    assert [as_written(document) for document in read_documents(text)] == parts
