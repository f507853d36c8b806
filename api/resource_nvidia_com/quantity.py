"""Quantities of the Kubernetes API (`80Gi`, `500m`, `1e3`): read, compare, write canonically.

In: a quantity's text, or a number of bytes. Out: an exact value and the text the API server would
store. Rule: apimachinery's resource.Quantity. Its grammar is followed to the letter, with two
differences: a number needs a digit (Go reads "Mi" and "+" as zero), and an exponent has at most
three digits (Go needs hours for longer ones). As in Go, fractions of a billionth are rounded away
from zero, and a binary quantity is capped at 2^63-1. Floating point is never involved.
"""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

_NANO = 10**9
_INT64_MAX = 2**63 - 1

PATTERN = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,3})?$"
"""The same grammar in the dialect that JSON schema and CEL (RE2) share."""

_GRAMMAR = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?"
    r"(?:(?P<binary>[KMGTPE]i)|(?P<decimal>[numkMGTPE]?)|[eE](?P<exponent>[+-]?[0-9]{1,3}))"
)
_BINARY = {f"{letter}i": 10 * power for power, letter in enumerate("KMGTPE", start=1)}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


class Format(StrEnum):
    """The family of suffixes of a quantity, which is kept when it is written."""

    BINARY_SI = "BinarySI"
    DECIMAL_SI = "DecimalSI"
    DECIMAL_EXPONENT = "DecimalExponent"


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """An exact number, in billionths. Only the value counts for equality and order."""

    nanos: int
    format: Format = field(default=Format.DECIMAL_SI, compare=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a quantity. Raises ValueError."""
        match = _GRAMMAR.fullmatch(text)
        if match is None or not (match["whole"] or match["fraction"]):
            raise ValueError(
                f"{text!r} is not a valid quantity: write, for example, 512Mi, 10Gi, 2G or 1500m"
            )
        fraction = match["fraction"] or ""
        digits = int(match["whole"] + fraction)
        nanos, form = _scaled(digits, len(fraction), match)
        return cls(-nanos if match["sign"] == "-" else nanos, form)

    @classmethod
    def of_bytes(cls, count: int) -> Self:
        """Return a number of bytes as a binary quantity."""
        return cls(count * _NANO, Format.BINARY_SI)

    @property
    def whole(self) -> int:
        """The value as a whole number, rounded up as Go's Quantity.Value() does."""
        return -(-self.nanos // _NANO)

    def __str__(self) -> str:
        """Return the canonical text: no fraction, nothing lost, the largest suffix that fits."""
        if self.nanos == 0:
            return "0"
        whole, rest = divmod(self.nanos, _NANO)
        if self.format is Format.BINARY_SI and rest == 0 and abs(whole) >= 1024:
            amount, power = _without_factors(whole, 1024, most=len(_BINARY))
            return f"{amount}{('', *_BINARY)[power]}"
        if self.format is Format.DECIMAL_EXPONENT:
            amount, power = _without_factors(self.nanos, 1000, most=None)
            exponent = 3 * power - 9
            return f"{amount}e{exponent}" if exponent else str(amount)
        amount, power = _without_factors(self.nanos, 1000, most=len(_DECIMAL) - 1)
        return f"{amount}{tuple(_DECIMAL)[power]}"


def quantity_bytes(text: str) -> int:
    """Return the value of a quantity of memory, rounded up to whole bytes. Raises ValueError."""
    return Quantity.parse(text).whole


def _scaled(digits: int, places: int, match: re.Match[str]) -> tuple[int, Format]:
    """Return `digits`·10^-places times the suffix, in billionths rounded up, and its kind."""
    if match["binary"]:
        nanos = -(-(digits << _BINARY[match["binary"]]) * _NANO // 10**places)
        return min(nanos, _INT64_MAX * _NANO), Format.BINARY_SI
    if match["exponent"] is not None:
        exponent, form = int(match["exponent"]), Format.DECIMAL_EXPONENT
    else:
        exponent, form = _DECIMAL[match["decimal"]], Format.DECIMAL_SI
    power = exponent + 9 - places
    if power >= 0:
        return digits * 10**power, form
    return -(-digits // 10**-power), form


def _without_factors(value: int, factor: int, *, most: int | None) -> tuple[int, int]:
    """Divide by `factor` while that is exact, at most `most` times; also return how often."""
    times = 0
    while (most is None or times < most) and value % factor == 0:
        value //= factor
        times += 1
    return value, times
