"""Kubernetes quantities (`10Gi`, `500M`, `1e3`) as far as configs need them: to bytes.

In: what JSON can hold for a quantity: a string, or a bare number. Out: the text as written, and its
value. Grammar: k8s.io/apimachinery, resource.Quantity; like Quantity.Value(), a fraction of a byte
is rounded up.
"""

import re
from decimal import ROUND_CEILING, Decimal
from typing import Annotated

from pydantic import BeforeValidator

_GRAMMAR = re.compile(
    r"(?P<number>[+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40}))"
    r"(?:(?P<suffix>[numkMGTPE]|[KMGTPE]i)|[eE](?P<exponent>[+-]?[0-9]{1,2}))?"
)

_SCALE = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    **{letter: Decimal(1000**power) for power, letter in enumerate("MGTPE", start=2)},
    **{f"{letter}i": Decimal(1024**power) for power, letter in enumerate("KMGTPE", start=1)},
}


def quantity_bytes(text: str) -> int:
    """Return the value of a quantity, rounded up to whole bytes.

    Raises:
        ValueError: `text` is no quantity.
    """
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        raise ValueError(f'"{text}" is not a quantity: write for example 512Mi, 10Gi or 2G')
    scale = Decimal(1)
    if match["suffix"]:
        scale = _SCALE[match["suffix"]]
    elif match["exponent"]:
        scale = Decimal(f"1e{match['exponent']}")
    value = Decimal(match["number"]) * scale
    return int(value.to_integral_value(rounding=ROUND_CEILING))


def _text(value: object) -> object:
    """Accept the bare numbers that the Go type accepts too; a boolean is no number here."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, str):
        quantity_bytes(value)
    return value


Quantity = Annotated[str, BeforeValidator(_text)]
"""A quantity as its author wrote it, known to be one."""
