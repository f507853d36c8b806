"""Opaque parameters to config models, strictly.

In: the JSON object under `opaque.parameters`, as a dict. Out: one of the models, chosen by
apiVersion and kind. Kubernetes checks nothing in there (resource.k8s.io/v1
OpaqueDeviceConfiguration), so an unknown field or a key written twice would silently mean something
else than its author thought: both are refused.

Python's JSON reader keeps the last of two equal keys and forgets the first. Who reads the JSON of a
claim passes `keep_duplicates` as its `object_pairs_hook`, and `decode` then knows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType, UnionType
from typing import get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from resource_nvidia_com.rules import Checked, OneOf, Rule, either, plain, shown
from resource_nvidia_com.v1beta1.base import API_VERSION
from resource_nvidia_com.v1beta1.gpu import GpuConfig
from resource_nvidia_com.v1beta1.mig import MigDeviceConfig

Config = GpuConfig | MigDeviceConfig
"""Any config this API group has for GPUs."""

MODELS: Mapping[str, type[Config]] = MappingProxyType(
    {"GpuConfig": GpuConfig, "MigDeviceConfig": MigDeviceConfig}
)
"""The models by their kind."""

VFIO_KIND = "VfioDeviceConfig"
"""A kind of NVIDIA's driver that this one refuses by name, so that its users hear why."""

VFIO_UNSUPPORTED = (
    f"{VFIO_KIND} is not supported: this driver gives GPUs to containers and has no VFIO "
    "passthrough to virtual machines; remove this config"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong with a config.

    `path` leads to it from the config's root. `text` says all, the path too, and stands alone.
    """

    path: tuple[str, ...]
    text: str


class InvalidConfigError(ValueError):
    """A config cannot be accepted. The text says field, value and what is allowed."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(problem.text for problem in problems))
        self.problems = tuple(problems)


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
    try:
        duplicates = list(_duplicates(parameters, ()))
    except RecursionError as error:
        raise InvalidConfigError([Problem(path=(), text="it is nested too deep")]) from error
    if duplicates:
        raise InvalidConfigError(duplicates)
    if not isinstance(parameters, Mapping):
        raise InvalidConfigError(
            [Problem(path=(), text="a config must be a JSON object with apiVersion and kind")]
        )
    model = _model(parameters)
    try:
        return model.model_validate(dict(parameters))
    except ValidationError as error:
        found = [_problem(model, details) for details in error.errors(include_url=False)]
        raise InvalidConfigError(found) from error


def _model(parameters: Mapping[str, object]) -> type[Config]:
    version, kind = parameters.get("apiVersion"), parameters.get("kind")
    if version in (None, ""):
        raise _wrong("apiVersion", f'missing field "apiVersion": must be {API_VERSION}')
    if version != API_VERSION:
        raise _wrong("apiVersion", f"unknown apiVersion {shown(version)}: must be {API_VERSION}")
    allowed = f"must be {either(MODELS)}"
    if kind in (None, ""):
        raise _wrong("kind", f'missing field "kind": {allowed}')
    if not isinstance(kind, str):
        raise _wrong("kind", f"kind: {allowed}, not {shown(kind)}")
    if kind == VFIO_KIND:
        raise _wrong("kind", VFIO_UNSUPPORTED)
    if kind not in MODELS:
        raise _wrong("kind", f"unknown kind {shown(kind)}: {_hint(kind, MODELS)}{allowed}")
    return MODELS[kind]


def _wrong(field: str, text: str) -> InvalidConfigError:
    return InvalidConfigError([Problem(path=(field,), text=text)])


def _problem(model: type[BaseModel], details: ErrorDetails) -> Problem:
    """Say in a user's words what pydantic found at one place."""
    path = tuple(str(part) for part in details["loc"])
    return Problem(path=path, text=_text(model, path, details))


def _text(model: type[BaseModel], path: tuple[str, ...], details: ErrorDetails) -> str:
    dotted = ".".join((*path[:-1], plain(path[-1]))) if path else ""
    match details["type"]:
        case "extra_forbidden":
            allowed = list(fields_at(model, path[:-1]))
            hint = _hint(path[-1], allowed)
            return f'unknown field "{dotted}": {hint}allowed fields: {", ".join(allowed)}'
        case "missing":
            return f'missing field "{dotted}"{_choice(fields_at(model, path[:-1])[path[-1]])}'
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"{dotted}: must be a JSON object, not {shown(details['input'])}"
        case "value_error":
            return f"{dotted}: {details['ctx']['error']}"
        case "rule":
            return f"{dotted}: {details['msg']}"
        case _:
            allowed_value = details["msg"].removeprefix("Input should be ")
            return f"{dotted}: must be {allowed_value}, not {shown(details['input'])}"


def fields_at(model: type[BaseModel], path: Sequence[str]) -> dict[str, FieldInfo]:
    """Return the fields that are allowed at `path` below `model`, by the names users write."""
    for part in path:
        found = inner_model(fields_at(model, ())[part])
        if found is None:
            raise KeyError(part)
        model = found
    return {str(field.alias): field for field in model.model_fields.values()}


def inner_model(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model that a field holds, or None when it holds a value."""
    kind = field.annotation
    # `Model | None`: what is not set is None.
    options = get_args(kind) if get_origin(kind) is UnionType else (kind,)
    return next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)


def rule_of(field: FieldInfo) -> Rule | None:
    """Return the rule that hangs on a field."""
    return next((mark.rule for mark in field.metadata if isinstance(mark, Checked)), None)


def _choice(field: FieldInfo) -> str:
    rule = rule_of(field)
    return f": must be {either(rule.values)}" if isinstance(rule, OneOf) else ""


def _hint(name: str, allowed: Sequence[str] | Mapping[str, object]) -> str:
    lower = {option.lower(): option for option in allowed}
    near = get_close_matches(name.lower(), lower, n=1, cutoff=0.75)
    return f'did you mean "{lower[near[0]]}"? ' if near else ""


def _duplicates(value: object, path: tuple[str, ...]) -> Iterator[Problem]:
    """Yield the keys below `value` that stand twice."""
    if isinstance(value, DuplicateKeys):
        for key in value.duplicates:
            dotted = ".".join((*path, plain(key)))
            yield Problem(path=(*path, key), text=f'duplicate field "{dotted}"')
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield from _duplicates(child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _duplicates(child, (*path, str(index)))
