"""What a value in a config must be, as data.

Each rule stands in the annotation of a model's field. pydantic gives it the value that a user
wrote, and it refuses that in words for the user; the JSON schema says what it can of it. Rules are
data and not functions, because the admission policy says the same in CEL: who adds a rule here adds
its CEL there.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import NoneType
from typing import Any, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import InitErrorDetails, core_schema

from resource_nvidia_com import quantity
from resource_nvidia_com.printable import either, plain, shown

LONGEST_QUANTITY = 64
"""Characters; Kubernetes sets no limit, but longer ones only cost time."""

UUID_PREFIXES = ("GPU-", "MIG-")
INDEX = "^([0-9]|[12][0-9]|3[01])$"
"""A place among the devices of a claim, of which there are at most 32."""
INTEGER = "^[+-]?[0-9]+$"

DEVICE_KEY = f"^(GPU-|MIG-)|{INDEX}"
"""How a device is named: by its UUID or its place."""


class Rule:
    """Parent of the rules: pydantic's door to them. Null is the field's own affair."""

    __slots__ = ()

    def read(self, value: object) -> object:
        """Return a value as the field's type, which JSON may not have. Raises ValueError."""
        raise NotImplementedError

    def json_schema(self) -> dict[str, Any]:
        """Return the rule as far as JSON schema can say it."""
        raise NotImplementedError

    def __get_pydantic_core_schema__(
        self, source: object, _handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        schema = core_schema.no_info_plain_validator_function(self.read)
        return core_schema.nullable_schema(schema) if NoneType in get_args(source) else schema

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, _handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        kinds = self.json_schema()
        return {"anyOf": [kinds, {"type": "null"}]} if schema["type"] == "nullable" else kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOf(Rule):
    """One of the names in `values`; `singular` and `plural` name what it is in the error."""

    values: type[StrEnum]
    singular: str
    plural: str

    def read(self, value: object) -> StrEnum:
        """Return the name as a member."""
        if not isinstance(value, str):
            raise ValueError(f"must be {either(self.values)}, not {shown(value)}")  # noqa: TRY004 (a mistake of a user)
        if value not in list(self.values):
            names = ", ".join(self.values)
            raise ValueError(
                f"unknown {self.singular}: {plain(value)}, supported {self.plural}: {names}"
            )
        return self.values(value)

    def json_schema(self) -> dict[str, Any]:
        """Return the names."""
        return {"enum": list(self.values), "type": "string"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeNumber(Rule):
    """A whole number within bounds, both included; `title` names it in the error."""

    least: int
    most: int
    title: str

    def read(self, value: object) -> int:
        """Return the number."""
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"must be a whole number, not {shown(value)}")  # noqa: TRY004 (a mistake of a user)
        if value < self.least:
            bound = "be negative" if self.least == 0 else f"be less than {self.least}"
            raise ValueError(f"{self.title} must not {bound}")
        if value > self.most:
            raise ValueError(f"{self.title} must not be greater than {self.most}")
        return value

    def json_schema(self) -> dict[str, Any]:
        """Return the bounds."""
        return {"maximum": self.most, "minimum": self.least, "type": "integer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag(Rule):
    """True or false."""

    def read(self, value: object) -> bool:
        """Return it."""
        if not isinstance(value, bool):
            raise ValueError(f"must be true or false, not {shown(value)}")  # noqa: TRY004 (a mistake of a user)
        return value

    def json_schema(self) -> dict[str, Any]:
        """Return the type."""
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size(Rule):
    """A quantity of memory, as text or as a bare number, of at least `least`."""

    least: str
    too_low: str = "default value set too low"

    def read(self, value: object) -> str:
        """Return the quantity as text."""
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise ValueError(f"must be a quantity such as 10Gi, not {shown(value)}")  # noqa: TRY004 (a mistake of a user)
        text = str(value)
        if len(text) > LONGEST_QUANTITY or not re.fullmatch(quantity.PATTERN, text):
            raise ValueError(
                f'"{plain(text)}" is not a valid quantity: write, for example, 512Mi, 10Gi or 2G'
            )
        if quantity.Quantity.parse(text) < quantity.Quantity.parse(self.least):
            raise ValueError(
                f"invalid limit: {self.too_low}: {text}: must be at least {self.least}"
            )
        return text

    def json_schema(self) -> dict[str, Any]:
        """Return the grammar; how much it is, no schema says."""
        text = {"maxLength": LONGEST_QUANTITY, "pattern": quantity.PATTERN, "type": "string"}
        return {"anyOf": [text, {"type": "number"}]}


@dataclass(frozen=True, slots=True, kw_only=True)
class SizePerDevice(Rule):
    """A JSON object: a device by UUID or index → a quantity of at least `least`."""

    least: str

    def read(self, value: object) -> dict[str, str]:
        """Return the quantities as text."""
        if not isinstance(value, Mapping):
            raise ValueError(  # noqa: TRY004 (a mistake of a user)
                f"must be a JSON object of devices and their limits, not {shown(value)}"
            )
        sizes: dict[str, str] = {}
        wrong: list[InitErrorDetails] = []
        for key, size in value.items():
            try:
                _check_device(key)
                rule = Size(least=self.least, too_low=f"value set too low: {plain(key)}")
                sizes[key] = rule.read(size)
            except ValueError as error:
                wrong.append(
                    {"type": "value_error", "loc": (key,), "input": size, "ctx": {"error": error}}
                )
        if wrong:
            raise ValidationError.from_exception_data(type(self).__name__, wrong)
        return sizes

    def json_schema(self) -> dict[str, Any]:
        """Return the forms of a device's name and of its quantity."""
        return {
            "additionalProperties": Size(least=self.least).json_schema(),
            "propertyNames": {"pattern": DEVICE_KEY},
            "type": "object",
        }


def _check_device(key: str) -> None:
    if key.startswith(UUID_PREFIXES) or re.fullmatch(INDEX, key):
        return
    if re.fullmatch(INTEGER, key):
        raise ValueError(f"invalid device: invalid device index: {plain(key)}: must be 0 to 31")
    text = f"invalid device: unable to parse key as an integer: {plain(key)}"
    raise ValueError(f"{text}: must be a device's UUID (GPU-… or MIG-…) or its index (0 to 31)")
