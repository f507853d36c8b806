"""Quantities, against answers of apimachinery v0.37.1 (ParseQuantity, then CanonicalizeBytes).

tests/data/quantities.json holds pairs of a text and its canonical form, null where Go refuses it.
"""

import json
from pathlib import Path

import pytest

from resource_nvidia_com.quantity import Format, Quantity

ANSWERS = json.loads(
    (Path(__file__).parents[2] / "data" / "quantities.json").read_text(encoding="utf-8")
)


def test_a_text_reads_as_in_go_and_comes_out_as_in_go_or_is_refused_as_there() -> None:
    def answer(text: str) -> str | None:
        try:
            return str(Quantity.parse(text))
        except ValueError as error:
            return None if "is not a valid quantity" in str(error) else str(error)

    assert [[text, answer(text)] for text, _ in ANSWERS] == ANSWERS


@pytest.mark.parametrize(
    "text", ["", "Mi", "+", "-", ".", "m", "e3", "1e1000", "1 Gi", "1gi", "1K", "0x10", "--1"]
)
def test_a_number_needs_a_digit_and_a_sane_exponent(text: str) -> None:
    with pytest.raises(ValueError, match="is not a valid quantity"):
        Quantity.parse(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (1023, "1023"),
        (1024, "1Ki"),
        (85899345920, "80Gi"),
        (85031124992, "81092Mi"),
        (85899345921, "85899345921"),
        (2**62, "4Ei"),
        (2**71, "2048Ei"),
    ],
)
def test_bytes_come_out_with_the_largest_binary_suffix_that_loses_nothing(
    count: int, text: str
) -> None:
    assert str(Quantity.of_bytes(count)) == text


def test_quantities_of_equal_value_are_equal_however_they_are_written() -> None:
    assert Quantity.parse("80Gi") == Quantity.parse("85899345920") == Quantity.parse("81920Mi")
    assert hash(Quantity.parse("1k")) == hash(Quantity.parse("1e3"))
    assert Quantity.parse("1G") < Quantity.parse("1Gi")


def test_the_format_is_that_of_the_suffix() -> None:
    formats = [Quantity.parse(text).format for text in ("1Gi", "1G", "1e9", "1")]
    assert formats == [
        Format.BINARY_SI,
        Format.DECIMAL_SI,
        Format.DECIMAL_EXPONENT,
        Format.DECIMAL_SI,
    ]


def test_more_than_the_largest_suffix_keeps_its_value() -> None:
    assert str(Quantity.parse("1000000E")) == "1000000E"
