"""What a value in a config must be, as data.

In: a rule and the value a user wrote. Out: what is wrong with it, in words for the user. Each rule
hangs on a field of a model as `Checked(rule)`; read.py then refuses what the rule refuses, and the
JSON schema says what it can of it. Rules are data and not functions, because the admission policy
says the same in CEL: who adds a rule here adds its CEL there.

An error repeats what was written, but never much of it and only on one line: it ends up in a pod's
events.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from resource_nvidia_com import quantity
from resource_nvidia_com.printable import printable

SHOWN = 80
"""Characters of a refused value that an error repeats."""

LONGEST_QUANTITY = 64
"""Characters; Kubernetes sets no limit, but longer ones only cost time."""

UUID_PREFIXES = ("GPU-", "MIG-")
INDEX = "^([0-9]|[12][0-9]|3[01])$"
"""A place among the devices of a claim, of which there are at most 32."""
INTEGER = "^[+-]?[0-9]+$"

DEVICE_KEY = f"^(GPU-|MIG-)|{INDEX}"
"""How a device is named: by its UUID or its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOf:
    """One of the names in `values`; `singular` and `plural` name what it is in the error."""

    values: type[StrEnum]
    singular: str
    plural: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeNumber:
    """A whole number within bounds, both included; `title` names it in the error."""

    least: int
    most: int
    title: str

    @property
    def too_small(self) -> str:
        """The error below `least`."""
        bound = "be negative" if self.least == 0 else f"be less than {self.least}"
        return f"{self.title} must not {bound}"

    @property
    def too_large(self) -> str:
        """The error above `most`."""
        return f"{self.title} must not be greater than {self.most}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """True or false."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A quantity of memory, as text or as a bare number, of at least `least`."""

    least: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SizePerDevice:
    """A JSON object: a device by UUID or index → a quantity of at least `least`."""

    least: str


Rule = OneOf | WholeNumber | Flag | Size | SizePerDevice


@dataclass(frozen=True, slots=True)
class Checked:
    """Mark of a model's field: its value must keep the rule. `None` is the field's own affair.

    `description` is for those who write the field.
    """

    rule: Rule
    description: str = ""


def problems(rule: Rule, value: object) -> Iterator[tuple[str | None, str]]:
    """Yield (key below the value or None, what is wrong) for everything that breaks the rule."""
    match rule:
        case OneOf():
            yield from _name_problem(rule, value)
        case WholeNumber():
            yield from _number_problem(rule, value)
        case Flag():
            if not isinstance(value, bool):
                yield None, f"must be true or false, not {shown(value)}"
        case Size():
            for text in _size_problem(value, rule.least, "default value set too low"):
                yield None, text
        case SizePerDevice():
            yield from _sizes_problems(rule, value)


def converted(rule: Rule, value: object) -> object:
    """Return a value that keeps the rule as the field's type, which JSON may not have."""
    match rule:
        case OneOf():
            return rule.values(str(value))
        case Size():
            return str(value)
        case SizePerDevice() if isinstance(value, Mapping):
            return {key: str(size) for key, size in value.items()}
        case _:
            return value


def json_schema(rule: Rule) -> dict[str, Any]:
    """Return the rule as far as JSON schema can say it."""
    match rule:
        case OneOf():
            return {"enum": list(rule.values), "type": "string"}
        case WholeNumber():
            return {"maximum": rule.most, "minimum": rule.least, "type": "integer"}
        case Flag():
            return {"type": "boolean"}
        case Size():
            text = {"maxLength": LONGEST_QUANTITY, "pattern": quantity.PATTERN, "type": "string"}
            return {"anyOf": [text, {"type": "number"}]}
        case SizePerDevice():
            size = json_schema(Size(least=rule.least))
            return {
                "additionalProperties": size,
                "propertyNames": {"pattern": DEVICE_KEY},
                "type": "object",
            }


def either(names: Iterable[str]) -> str:
    """Return the names as a choice in a sentence: `a, b or c`."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def shown(value: object) -> str:
    """Return a value as an error repeats it: short, on one line."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{plain(value)}"'
        case Mapping():
            return "an object"
        case list():
            return "a list"
        case _:
            return plain(str(value))


def plain(text: str) -> str:
    """Return a text as an error repeats it without quotes: short, on one line."""
    text = printable(text)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _name_problem(rule: OneOf, value: object) -> Iterator[tuple[None, str]]:
    if not isinstance(value, str):
        yield None, f"must be {either(rule.values)}, not {shown(value)}"
    elif value not in list(rule.values):
        names = ", ".join(rule.values)
        yield None, f"unknown {rule.singular}: {plain(value)}, supported {rule.plural}: {names}"


def _number_problem(rule: WholeNumber, value: object) -> Iterator[tuple[None, str]]:
    if not isinstance(value, int) or isinstance(value, bool):
        yield None, f"must be a whole number, not {shown(value)}"
    elif value < rule.least:
        yield None, rule.too_small
    elif value > rule.most:
        yield None, rule.too_large


def _sizes_problems(rule: SizePerDevice, value: object) -> Iterator[tuple[str | None, str]]:
    if not isinstance(value, Mapping):
        yield None, f"must be a JSON object of devices and their limits, not {shown(value)}"
        return
    for key, size in value.items():
        bad = _device_problem(key)
        if bad:
            yield key, bad
            continue
        for text in _size_problem(size, rule.least, f"value set too low: {plain(key)}"):
            yield key, text


def _device_problem(key: str) -> str:
    if key.startswith(UUID_PREFIXES) or re.fullmatch(INDEX, key):
        return ""
    if re.fullmatch(INTEGER, key):
        return f"invalid device: invalid device index: {plain(key)}: must be 0 to 31"
    text = f"invalid device: unable to parse key as an integer: {plain(key)}"
    return f"{text}: must be a device's UUID (GPU-… or MIG-…) or its index (0 to 31)"


def _size_problem(value: object, least: str, low: str) -> Iterator[str]:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        yield f"must be a quantity such as 10Gi, not {shown(value)}"
        return
    text = str(value)
    if len(text) > LONGEST_QUANTITY or not re.fullmatch(quantity.PATTERN, text):
        yield f'"{plain(text)}" is not a valid quantity: write, for example, 512Mi, 10Gi or 2G'
    elif quantity.Quantity.parse(text) < quantity.Quantity.parse(least):
        yield f"invalid limit: {low}: {text}: must be at least {least}"
