"""Whether a value fits a schema of Kubernetes: fields, types, values.

The schemas are those that an API server publishes at /openapi/v3 (kubernetes.json, written by
hack/kubernetes_schema.py). They use few of JSON Schema's keywords, and the errors are for people,
so they are checked here; a test compares the verdicts with those of the library jsonschema. As in
the API server, a null field counts as not set, and so does an empty text if values are named.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from resource_nvidia_com.printable import plain, shown
from resource_nvidia_com.problems import Path, Problem, dotted, hint, lost_indent
from resource_nvidia_com.quantity import Quantity

Schema = Mapping[str, Any]

_LISTED = 12
"""How many allowed fields are listed; a pod has three times as many."""

_TYPES: Mapping[str, tuple[type, str]] = {
    "object": (Mapping, "an object"),
    "array": (list, "a list"),
    "string": (str, "text"),
    "boolean": (bool, "true or false"),
    "integer": (int, "a whole number"),
}

CONVERTS = "`dra-driver convert FILE` converts it"
"""Added for fields of older APIs, after what to write instead."""

_EXACTLY = "a request has had its fields under `exactly` since resource.k8s.io/v1beta2"
_BELOW_EXACTLY = (
    *("adminAccess", "allocationMode", "capacity", "count"),
    *("deviceClassName", "selectors", "tolerations"),
)
_OF_DEVICES = (
    "a claim has asked for devices since resource.k8s.io/v1alpha3: write `devices: {requests: "
    "[{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}`"
)
_MOVED: Mapping[str, Mapping[str, str]] = {
    "resource.v1.DeviceRequest": {
        name: f"{_EXACTLY}: write `exactly: {{{name}: …}}`" for name in _BELOW_EXACTLY
    },
    "resource.v1.ResourceClaimSpec": dict.fromkeys(
        ("resourceClassName", "parametersRef", "allocationMode"), _OF_DEVICES
    ),
    "core.v1.PodResourceClaim": {
        "source": "write resourceClaimName or resourceClaimTemplateName beside `name`, which have "
        f"been there since Kubernetes 1.31; {CONVERTS}"
    },
}
"""Fields of older versions of the API, by the schema that had them, and what to write instead."""

_ONE_OF: Mapping[str, tuple[str, str]] = {
    "resource.v1.DeviceRequest": ("exactly", "firstAvailable"),
    "core.v1.PodResourceClaim": ("resourceClaimName", "resourceClaimTemplateName"),
}
"""Fields of which an object has exactly one; OpenAPI does not say it."""


@cache
def schemas() -> Mapping[str, Schema]:
    """Return the schemas of Kubernetes by their names, such as `core.v1.Pod`."""
    text = files("dra_driver.admin.validate").joinpath("kubernetes.json").read_text("utf-8")
    by_kind: Mapping[str, Schema] = json.loads(text)["schemas"]
    return by_kind


def problems(value: object, name: str, path: Path = ()) -> Iterator[Problem]:
    """Yield what is wrong with a value that stands at `path`."""
    yield from _check(value, {"$ref": name}, path)


def _check(value: object, schema: Schema, path: Path) -> Iterator[Problem]:
    name = schema.get("$ref", "")
    schema = schemas()[name] if name else schema
    wrong = _wrong_value(value, schema)
    if wrong:
        yield Problem(path=path, text=f"{dotted(path)}: {wrong}")
    elif isinstance(value, Mapping):
        yield from _check_fields(value, schema, name, path)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _check(item, schema.get("items", {}), (*path, index))


def _wrong_value(value: object, schema: Schema) -> str:
    """Return what is wrong with a value itself; nothing if it is right."""
    if value is None:
        return ""
    if form := schema.get("format"):
        return _wrong_form(value, form)
    if kind := schema.get("type"):
        type_, called = _TYPES[kind]
        if not isinstance(value, type_) or (kind == "integer" and isinstance(value, bool)):
            return f"must be {called}, not {shown(value)}"
    allowed = schema.get("enum", ())
    if allowed and value not in (*allowed, ""):
        return f"must be {' or '.join(allowed)}, not {shown(value)}"
    return ""


def _wrong_form(value: object, form: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        number = "a whole number or text" if form == "int-or-string" else "a quantity"
        return f"must be {number}, not {shown(value)}"
    if form == "quantity":
        try:
            Quantity.parse(str(value))
        except ValueError:
            return f"must be a quantity such as 10Gi, not {shown(value)}"
    return ""


def _check_fields(
    value: Mapping[str, object], schema: Schema, name: str, path: Path
) -> Iterator[Problem]:
    properties, others = schema.get("properties"), schema.get("additionalProperties", {})
    below = f"{dotted(path)}: " if path else ""
    unknown = []
    for key, member in value.items():
        if properties is None:
            yield from _check(member, others, (*path, key))
        elif key in properties:
            yield from _check(member, properties[key], (*path, key))
        else:
            unknown.append(key)
            text = _MOVED.get(name, {}).get(key) or _allowed(key, properties)
            text = f'{below}unknown field "{plain(key)}": {text}{lost_indent(key, value)}'
            yield Problem(path=(*path, key), text=text)
    for key in schema.get("required", ()):
        if value.get(key) is None:
            yield Problem(path=(*path, key), text=f'{below}missing field "{key}"')
    if name in _ONE_OF and not unknown:
        yield from _one_of(value, _ONE_OF[name], path)


def _one_of(value: Mapping[str, object], names: tuple[str, str], path: Path) -> Iterator[Problem]:
    written = [name for name in names if value.get(name) is not None]
    if len(written) != 1:
        says = "both are there" if written else "neither is there"
        text = f"{dotted(path)}: exactly one of {' and '.join(names)} must be set, and {says}"
        yield Problem(path=path, text=text)


def _allowed(key: str, properties: Mapping[str, object]) -> str:
    if near := hint(key, properties):
        return near.strip()
    listed = ", ".join(list(properties)[:_LISTED])
    return f"allowed fields: {listed}{', …' if len(properties) > _LISTED else ''}"
