"""The rules for quantities of memory in configs; for everything else pydantic's types are enough.

A rule gets the value that a user wrote, and its errors are for that user; the JSON schema has as
much of it as it can express. The admission policy says the same in CEL
(dra_driver/admin/admission/cel.py): a new rule here needs its CEL there.
"""

import re
from typing import Annotated

from pydantic import AfterValidator, PlainValidator, WithJsonSchema

from resource_nvidia_com import quantity
from resource_nvidia_com.printable import plain, shown

LONGEST_QUANTITY = 64
"""In characters; Kubernetes sets no limit, but longer ones only cost time."""

LEAST_LIMIT = "1Mi"
"""The MPS daemon takes limits in whole MiB, and zero would mean no limit."""

DEVICE_KEY = "^(GPU-|MIG-)|^([0-9]|[12][0-9]|3[01])$"
"""How a device is named: by its UUID, or its place among a claim's devices, of which there are 32
at most."""


def _size(value: object) -> str:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise ValueError(f"must be a quantity such as 10Gi, not {shown(value)}")  # noqa: TRY004 (a mistake of a user)
    text = str(value)
    if len(text) > LONGEST_QUANTITY or not re.fullmatch(quantity.PATTERN, text):
        raise ValueError(
            f'"{plain(text)}" is not a valid quantity: write, for example, 512Mi, 10Gi or 2G'
        )
    if quantity.Quantity.parse(text) < quantity.Quantity.parse(LEAST_LIMIT):
        raise ValueError(f"{text} is too low: must be at least {LEAST_LIMIT}")
    return text


def _device(key: str) -> str:
    if not re.match(DEVICE_KEY.replace("$", r"\Z"), key):
        raise ValueError("must be a device's UUID (GPU-… or MIG-…) or its index (0 to 31)")
    return key


_TEXT = {"maxLength": LONGEST_QUANTITY, "pattern": quantity.PATTERN, "type": "string"}
_SCHEMA = {"anyOf": [_TEXT, {"type": "number"}]}

Size = Annotated[str, PlainValidator(_size), WithJsonSchema(_SCHEMA)]
"""A quantity of memory, as text or as a bare number, of at least LEAST_LIMIT; it is read as text.
A schema cannot check the amount."""

SizePerDevice = Annotated[
    dict[Annotated[str, AfterValidator(_device)], Size],
    WithJsonSchema(
        {
            "additionalProperties": _SCHEMA,
            "propertyNames": {"pattern": DEVICE_KEY},
            "type": "object",
        }
    ),
]
"""A JSON object: a device by UUID or index → its size."""
