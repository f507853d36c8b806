"""The `selector` of GpuClaimParameters as an expression in CEL. Pure.

In: a selector as gpu.resource.nvidia.com/v1alpha1 defines it: one property of a GPU, or a list of
selectors under `andExpression` or `orExpression`. Out: what a claim's selector says now. Some
properties are now true or false for all GPUs, and then the terms around them are simplified. Others
cannot be expressed, and are left out with the reason. The first driver's patterns matched anywhere
in a name, ignoring case.
"""

import re
from collections.abc import Callable, Mapping

from dra_driver.admin.convert.outcome import loss
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.kube.fields import at, text
from resource_nvidia_com.printable import shown
from resource_nvidia_com.problems import Path, Problem
from resource_nvidia_com.quantity import Quantity

Term = str | bool | None
"""CEL; or true or false for every GPU; or nothing, if it cannot be expressed."""

_ATTRIBUTES = f"device.attributes['{DRIVER_NAME}']"
_CAPACITY = f"device.capacity['{DRIVER_NAME}']"
_OPERATORS: Mapping[str, str] = {
    "Equals": "==",
    "LessThan": "<",
    "LessThanOrEqualTo": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqualTo": ">=",
}
_VERSION = re.compile(r"v?([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?")
_META = re.compile(r"([\\.+?()|\[\]{}^$])")
LOST: Mapping[str, str] = {
    "index": "GPUs can no longer be chosen by index: use uuid or another property",
}
"""Properties that no device has now, and what to do."""

_KNOWN = "write one property of a GPU, andExpression or orExpression"


def expression(selector: object, path: Path, losses: list[Problem]) -> Term:
    """Return the CEL of the selector at `path`."""
    if not isinstance(selector, Mapping) or len(selector) != 1:
        losses.append(loss(path, f"cannot be read: {_KNOWN}"))
        return None
    ((field, value),) = selector.items()
    where = (*path, field)
    if field in ("andExpression", "orExpression") and isinstance(value, list) and value:
        terms = [expression(term, (*where, index), losses) for index, term in enumerate(value)]
        return _joined(terms, is_or=field == "orExpression")
    if field in LOST:
        losses.append(loss(where, LOST[field]))
        return None
    try:
        return _PROPERTIES[field](field, value)
    except (KeyError, ValueError):
        losses.append(loss(where, f"{shown(value)} cannot be read: {_KNOWN}"))
        return None


def _joined(terms: list[Term], *, is_or: bool) -> Term:
    if is_or in terms:
        return is_or
    said = [term for term in terms if isinstance(term, str)]
    # An alternative that cannot be expressed must not exclude the GPUs that it was for.
    if None in terms and (is_or or not said):
        return None
    if not said:
        return not is_or
    joined = (" || " if is_or else " && ").join(said)
    return f"({joined})" if is_or and len(said) > 1 else joined


def _is(field: str, value: object) -> Term:
    return f"{_ATTRIBUTES}.{field} == {literal(_text(value))}"


def _matches(field: str, value: object) -> Term:
    words = (_META.sub(r"\\\1", word) for word in _text(value).lower().split("*"))
    pattern = ".*".join(words).removeprefix(".*").removesuffix(".*")
    if not pattern:
        return True
    return f"{_ATTRIBUTES}.{field}.lowerAscii().matches({literal(pattern)})"


def _compares_version(field: str, value: object) -> Term:
    match = _VERSION.fullmatch(str(at(value, "value")))
    if match is None:
        raise ValueError(field)
    version = ".".join(str(int(part or 0)) for part in match.groups())
    # A device may lack all of them but the first.
    lacking = "" if field == "cudaComputeCapability" else ".orValue(semver('0.0.0'))"
    held = f"{_ATTRIBUTES}.{'?' if lacking else ''}{field}{lacking}"
    return _compares(held, f"semver('{version}')", value)


def _compares_quantity(field: str, value: object) -> Term:
    quantity = str(at(value, "value"))
    Quantity.parse(quantity)
    return _compares(f"{_CAPACITY}.{field}", f"quantity({literal(quantity)})", value)


def _compares(held: str, asked: str, value: object) -> str:
    return f"{held}.compareTo({asked}) {_OPERATORS[text(value, 'operator')]} 0"


def _is_in_mig_mode(_field: str, value: object) -> Term:
    """A GPU in MIG mode is offered as MIG devices, never as a GPU."""
    if not isinstance(value, bool):
        raise ValueError(value)  # noqa: TRY004 (as all that cannot be read)
    return not value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(value)  # noqa: TRY004 (as all that cannot be read)
    return value


def literal(value: str) -> str:
    """Return a text as CEL writes it."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + escaped.replace("\n", "\\n").replace("\r", "\\r") + "'"


_PROPERTIES: Mapping[str, Callable[[str, object], Term]] = {
    "uuid": _is,
    "migEnabled": _is_in_mig_mode,
    "memory": _compares_quantity,
    "productName": _matches,
    "brand": _matches,
    "architecture": _matches,
    "cudaComputeCapability": _compares_version,
    "driverVersion": _compares_version,
    "cudaDriverVersion": _compares_version,
}
"""Properties by the names of GpuSelectorProperties; attributes and capacities have the same."""
