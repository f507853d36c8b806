"""The functions of CEL that selectors of devices may call.

They are CEL's standard functions, most of those for strings and optional values, and Kubernetes'
for quantities and versions. A wrong type is CEL's error "no such overload"; any other function is
unknown. Pure.
"""

import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from dra_driver.admin.cel import strings
from dra_driver.admin.cel.values import (
    NONE,
    Defaulting,
    Double,
    EvaluationError,
    Fine,
    NotUnderstoodError,
    Optional,
    Semver,
    TypeOf,
    Uint,
    equal,
    is_number,
    need,
    no_overload,
    type_name,
)
from resource_nvidia_com.quantity import Quantity

Function = Callable[..., object]

_NANO = 10**9
_FRACTION = re.compile(r"[.mun]|[eE]-")


def call(name: str, values: tuple[object, ...], *, is_member: bool) -> object:
    """Call a function and return its value; a member's target is the first of `values`.

    Raises EvaluationError for CEL's errors, NotUnderstoodError if the function is not known.
    """
    function = (_MEMBERS if is_member else _GLOBALS).get(name)
    if function is None:
        raise NotUnderstoodError(f"the function {name}()")
    try:
        return function(*values)
    except TypeError:
        raise no_overload() from None


def checked(value: int) -> int:
    """Return an integer within CEL's limits."""
    low, high = (0, 2**64) if isinstance(value, Uint) else (-(2**63), 2**63)
    if not low <= value < high:
        raise EvaluationError("integer overflow")
    return value


def compare(left: Any, right: Any) -> int:
    """Return -1, 0 or 1."""
    if isinstance(left, Quantity) and isinstance(right, Quantity):
        left, right = left.nanos, right.nanos
    numbers = is_number(left) and is_number(right)
    comparable = isinstance(left, str | bool | Semver)
    if not numbers and not (comparable and type(left) is type(right)):
        raise no_overload()
    return bool(left > right) - bool(left < right)


def contains(container: Any, value: Any) -> bool:
    """Return the value of `value in container`."""
    if isinstance(container, dict):
        return isinstance(value, str | bool | int) and value in container
    if not isinstance(container, list):
        raise no_overload()
    return any(equal(element, value) for element in container)


def field_of(container: Any, key: Any) -> Optional:
    """Return the value of a map or list at a key, if there is one."""
    if isinstance(container, dict):
        if isinstance(container, Defaulting) and isinstance(key, str):
            return Optional(container[key], is_there=True)
        return Optional(container[key], is_there=True) if contains(container, key) else NONE
    if isinstance(container, list):
        if not is_number(key) or key != int(key):
            raise no_overload()
        place = int(key)
        return Optional(container[place], is_there=True) if 0 <= place < len(container) else NONE
    return NONE


def _size(value: Any) -> int:
    need(value, str, list, dict)
    return len(value)


def _int(value: Any) -> int:
    if isinstance(value, str):
        try:
            return checked(int(value))
        except ValueError:
            raise EvaluationError(f"type conversion error from string {value!r} to int") from None
    if not is_number(value):
        raise no_overload()
    if isinstance(value, float) and not math.isfinite(value):
        raise EvaluationError("integer overflow")
    return checked(int(value))


def _double(value: Any) -> float:
    if isinstance(value, str) or is_number(value):
        try:
            return Double(value)
        except ValueError:
            raise EvaluationError("type conversion error from string to double") from None
    raise no_overload()


def _string(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return value
        case Uint() | int():
            return str(int(value))
        case Semver() | Quantity():
            raise EvaluationError(f"type conversion error from {type_name(value)!r} to 'string'")
        case _:
            raise NotUnderstoodError(f"string() of a {type_name(value)}")


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise no_overload()
    if value in ("1", "t", "true", "TRUE", "True", "T"):
        return True
    if value in ("0", "f", "false", "FALSE", "False", "F"):
        return False
    raise EvaluationError("type conversion error from string to bool")


def _quantity(text: Any) -> Quantity:
    need(text, str)
    try:
        quantity = Quantity.parse(str(text))
        return Fine(quantity.nanos, quantity.format) if _FRACTION.search(str(text)) else quantity
    except ValueError as error:
        raise EvaluationError(str(error)) from error


def _semver(text: Any, normalize: Any = False) -> Semver:
    need(text, str)
    need(normalize, bool)
    try:
        return Semver.parse(str(text), normalize=bool(normalize))
    except ValueError as error:
        raise EvaluationError(str(error)) from error


def _compare_to(left: Any, right: Any) -> int:
    need(left, Semver, Quantity)
    return compare(left, right)


def _number_of(place: int) -> Function:
    def part(version: Any) -> int:
        need(version, Semver)
        return int(version.numbers[place])

    return part


def _as_integer(value: Any) -> int:
    need(value, Quantity)
    whole, rest = divmod(value.nanos, _NANO)
    if isinstance(value, Fine) and not rest:
        raise NotUnderstoodError("a whole quantity with a fraction as an integer")
    if rest or not -(2**63) <= whole < 2**63:
        raise EvaluationError("cannot convert value to integer")
    return int(whole)


def _is_integer(value: Any) -> bool:
    try:
        _as_integer(value)
    except EvaluationError:
        need(value, Quantity)
        return False
    return True


def _includes(holder: Any, value: Any) -> bool:
    for element in holder if isinstance(holder, list) else [holder]:
        try:
            if equal(element, value):
                return True
        except EvaluationError:  # values of different types are different
            continue
    return False


def _value(optional: Any) -> object:
    need(optional, Optional)
    if not optional.is_there:
        raise EvaluationError("optional.none() dereference")
    return optional.value


def _has_value(optional: Any) -> bool:
    need(optional, Optional)
    return bool(optional.is_there)


def _non_zero(value: Any) -> Optional:
    is_zero = value is None or value in (False, 0, "", [], {})
    return NONE if is_zero else Optional(value, is_there=True)


_MEMBERS: Mapping[str, Function] = MappingProxyType(
    {
        "size": _size,
        "contains": strings.of_strings(lambda text, part: part in text),
        "startsWith": strings.of_strings(lambda text, part: text.startswith(part)),
        "endsWith": strings.of_strings(lambda text, part: text.endswith(part)),
        "matches": strings.of_strings(strings.matches),
        "lowerAscii": strings.of_strings(strings.ascii_only(str.lower)),
        "upperAscii": strings.of_strings(strings.ascii_only(str.upper)),
        "trim": strings.of_strings(strings.trim),
        "indexOf": strings.index_of,
        "substring": strings.substring,
        "split": strings.split,
        "replace": strings.replace,
        "join": strings.join,
        "includes": _includes,
        "compareTo": _compare_to,
        "isGreaterThan": lambda left, right: _compare_to(left, right) > 0,
        "isLessThan": lambda left, right: _compare_to(left, right) < 0,
        "major": _number_of(0),
        "minor": _number_of(1),
        "patch": _number_of(2),
        "asInteger": _as_integer,
        "isInteger": _is_integer,
        "value": _value,
        "hasValue": _has_value,
    }
)

_GLOBALS: Mapping[str, Function] = MappingProxyType(
    {
        "size": _size,
        "matches": strings.of_strings(strings.matches),
        "int": _int,
        "uint": lambda value: checked(Uint(_int(value))),
        "double": _double,
        "string": _string,
        "bool": _bool,
        "dyn": lambda value: value,
        "type": lambda value: TypeOf(type_name(value)),
        "quantity": _quantity,
        "semver": _semver,
        "optional.of": lambda value: Optional(value, is_there=True),
        "optional.none": lambda: NONE,
        "optional.ofNonZeroValue": _non_zero,
    }
)
