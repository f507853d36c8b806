"""Opaque parameters to config models: strict for what users write, lenient for what is stored.

In: the JSON object under `opaque.parameters`, as a dict. Out: one of the models, chosen by
apiVersion and kind. Kubernetes checks nothing in there (resource.k8s.io/v1
OpaqueDeviceConfiguration), so an unknown field or a key written twice would silently mean something
else than its author thought: both are refused. Lenient reading drops unknown fields, so that an
older driver can read what a newer one stored.

Python's JSON reader keeps the last of two equal keys and forgets the first. Who reads the JSON of a
claim passes `keep_duplicates` as its `object_pairs_hook`, and `decode` then knows.
"""

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from types import UnionType
from typing import Literal, TypeGuard, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from resource_nvidia_com.v1beta1.base import API_VERSION
from resource_nvidia_com.v1beta1.gpu import GpuConfig
from resource_nvidia_com.v1beta1.mig import MigDeviceConfig
from resource_nvidia_com.v1beta1.vfio import VfioDeviceConfig

Config = GpuConfig | MigDeviceConfig | VfioDeviceConfig
"""Any config this API group has for GPUs."""

_SHOWN = 80
"""Characters of a refused value that an error repeats: it ends in a pod's events."""


class InvalidConfigError(ValueError):
    """A config cannot be accepted. The text says field, value and what is allowed."""


class DuplicateKeys(dict[str, object]):
    """A JSON object in which a key stood more than once; `duplicates` are those keys."""

    def __init__(self, pairs: Sequence[tuple[str, object]], duplicates: Sequence[str]) -> None:
        super().__init__(pairs)
        self.duplicates = tuple(duplicates)


def keep_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Build a JSON object and remember keys that stand twice (for `object_pairs_hook`)."""
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    keys = [key for key, _ in pairs]
    return DuplicateKeys(pairs, [key for key in value if keys.count(key) > 1])


def decode(parameters: object) -> Config:
    """Return the config a user wrote, checked in full.

    Raises:
        InvalidConfigError: naming every field that is wrong, its value and what is allowed.
    """
    duplicates = _duplicates(parameters, "")
    if duplicates:
        raise InvalidConfigError("; ".join(f'duplicate field "{path}"' for path in duplicates))
    return _decode(parameters, extra="forbid")


def decode_stored(parameters: object) -> Config:
    """Return a config this driver stored, maybe in a newer version: unknown fields are dropped.

    Raises:
        InvalidConfigError: a field that is known has a wrong value.
    """
    return _decode(parameters, extra="ignore")


def _decode(parameters: object, *, extra: Literal["forbid", "ignore"]) -> Config:
    if not isinstance(parameters, Mapping):
        raise InvalidConfigError("a config must be a JSON object with apiVersion and kind")
    model = _model(parameters)
    try:
        return model.model_validate(dict(parameters), extra=extra)
    except ValidationError as error:
        texts = [_text(model, details) for details in error.errors(include_url=False)]
        raise InvalidConfigError("; ".join(texts)) from error


def _model(parameters: Mapping[str, object]) -> type[Config]:
    version, kind = parameters.get("apiVersion"), parameters.get("kind")
    models: dict[str, type[Config]] = {
        "GpuConfig": GpuConfig,
        "MigDeviceConfig": MigDeviceConfig,
        "VfioDeviceConfig": VfioDeviceConfig,
    }
    if version != API_VERSION:
        found = f"unknown apiVersion {_shown(version)}" if version else 'missing field "apiVersion"'
        raise InvalidConfigError(f"{found}: want {API_VERSION}")
    if not isinstance(kind, str) or not kind:
        raise InvalidConfigError(f'missing field "kind": one of {", ".join(models)}')
    if kind not in models:
        raise InvalidConfigError(
            f"unknown kind {_shown(kind)}: {_hint(kind, models)}one of {', '.join(models)}"
        )
    return models[kind]


def _text(model: type[BaseModel], details: ErrorDetails) -> str:
    """Say in a user's words what pydantic found at one place."""
    path = ".".join(str(part) for part in details["loc"])
    match details["type"]:
        case "extra_forbidden":
            *parents, name = (str(part) for part in details["loc"])
            allowed = list(_fields_at(model, parents))
            return (
                f'unknown field "{path}": {_hint(name, allowed)}allowed here: {", ".join(allowed)}'
            )
        case "missing":
            *parents, name = (str(part) for part in details["loc"])
            kind = _fields_at(model, parents)[name].annotation
            values = f": one of {', '.join(kind)}" if _is_enum(kind) else ""
            return f'missing field "{path}"{values}'
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"{path}: want a JSON object, got {_shown(details['input'])}"
        case "value_error":
            return f"{path}: {details['ctx']['error']}"
        case _:
            want = details["msg"].removeprefix("Input should be ")
            return f"{path}: want {want}, got {_shown(details['input'])}"


def _fields_at(model: type[BaseModel], path: Sequence[str]) -> dict[str, FieldInfo]:
    """Return the fields that are allowed at `path` below `model`, by the names users write."""
    for part in path:
        kind = {field.alias: field for field in model.model_fields.values()}[part].annotation
        # `Model | None`: what is not set is None.
        options = get_args(kind) if get_origin(kind) is UnionType else (kind,)
        model = next(o for o in options if isinstance(o, type) and issubclass(o, BaseModel))
    return {str(field.alias): field for field in model.model_fields.values()}


def _is_enum(kind: object) -> TypeGuard[type[StrEnum]]:
    return isinstance(kind, type) and issubclass(kind, StrEnum)


def _hint(name: str, allowed: Sequence[str] | Mapping[str, object]) -> str:
    lower = {option.lower(): option for option in allowed}
    near = get_close_matches(name.lower(), lower, n=1, cutoff=0.75)
    return f'did you mean "{lower[near[0]]}"? ' if near else ""


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _duplicates(value: object, path: str) -> list[str]:
    """Return the paths of all keys below `value` that stand twice."""
    found: list[str] = []
    if isinstance(value, DuplicateKeys):
        found += [f"{path}{key}" for key in value.duplicates]
    if isinstance(value, Mapping):
        for key, child in value.items():
            found += _duplicates(child, f"{path}{key}.")
    elif isinstance(value, list):
        for index, child in enumerate(value):
            found += _duplicates(child, f"{path}{index}.")
    return found
