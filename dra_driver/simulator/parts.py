"""Building blocks of a profile's models: words, numbers, and errors about invalid ones."""

from collections.abc import Iterable
from typing import Annotated

import pydantic

Positive = Annotated[int, pydantic.Field(gt=0, lt=2**31)]
Count = Annotated[int, pydantic.Field(ge=0, lt=2**31)]
# Texts of facts are stored in fields of 96 bytes, and printed on terminals.
ShortText = Annotated[str, pydantic.StringConstraints(pattern=r"^[ -~]{1,90}$")]
PciAddress = Annotated[
    str,
    pydantic.StringConstraints(
        # As the kernel writes it: a domain has four digits, or more where it is above ffff (VMD).
        pattern=r"^([0-9a-f]{4}|[1-9a-f][0-9a-f]{4,7}):[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$"
    ),
]
HexWord = Annotated[str, pydantic.StringConstraints(pattern=r"^0x[0-9a-f]{4}$")]
PciClass = Annotated[str, pydantic.StringConstraints(pattern=r"^0x[0-9a-f]{6}$")]


def one_of(value: str, allowed: Iterable[str]) -> str:
    """Return the word if it is one of the choices; otherwise raise ValueError."""
    if value not in allowed:
        raise ValueError(f"{value!r} is none of {', '.join(sorted(allowed))}")
    return value


def problems(error: pydantic.ValidationError) -> str:
    """Return a description of what is wrong with a profile."""
    texts = []
    for problem in error.errors():
        place = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        texts.append(f"{place}: {message}" if place else message)
    return "; ".join(texts)
