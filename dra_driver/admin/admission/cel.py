"""The rules of the config models as CEL: variables and validations of an admission policy. Pure.

In: the models of `api/`. Out: for each rule one short expression that must hold, with a fixed
message that names the field and what is allowed there. Kinds with a field at the same place share
its rules. Parents come before their fields, because the API server shows only the first message.

No expression here can fail to evaluate, whatever the configs contain: a variable leaves out values
without the shape that its readers need, and the rule on the parent refuses them. Only Kubernetes'
CEL library up to 1.33 is used, because a new API server accepts only what its predecessor
understood.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import NoneType
from typing import Literal, get_args, get_origin

from annotated_types import Ge, Le
from msgspec import Struct
from pydantic.fields import FieldInfo

from resource_nvidia_com.model import ConfigModel, Exclusion, names_of, part_of
from resource_nvidia_com.printable import either
from resource_nvidia_com.quantity import PATTERN
from resource_nvidia_com.rules import (
    DEVICE_KEY,
    LEAST_LIMIT,
    LONGEST_QUANTITY,
    Size,
    SizePerDevice,
)
from resource_nvidia_com.v1beta1.names import API_VERSION

CONFIGS = "configs"
"""The variable with all configs of this driver, which the policy has to define."""

PARAMETERS = ("opaque", "parameters")
"""Where a config is in the `config` list of a claim, template or class."""

Models = Mapping[str, type[ConfigModel]]
"""The models by their kind; below the root, those of a part by the kind of the config it is in."""


class Variable(Struct, frozen=True, kw_only=True):
    """A list: the values that a field has in all configs."""

    name: str
    expression: str


class Validation(Struct, frozen=True, kw_only=True):
    """A rule: `expression` holds, or the object is refused with `message`, about field `path`.

    A line break in an expression is where a reader would like one.
    """

    path: tuple[str, ...]
    expression: str
    message: str


class Checks(Struct, frozen=True, kw_only=True):
    """What a policy needs to check configs, in the order of its evaluation."""

    variables: list[Variable] = []
    validations: list[Validation] = []

    def refuse(self, path: tuple[str, ...], over: str, unless: str, text: str) -> None:
        """Add a rule for each value `it` of a variable; `text` describes it for the field."""
        expression = f"variables.{over}.all(it, {unless})"
        message = f"{'.'.join((*PARAMETERS, *path))} {text}"
        self.validations.append(Validation(path=path, expression=expression, message=message))

    def define(self, name: str, parent: str, condition: str) -> None:
        """Add the variable of a field: its values in `parent` for which the condition holds."""
        if name in (CONFIGS, *(variable.name for variable in self.variables)):
            raise TypeError(f"two fields are named {name}: the policy needs a variable for each")
        expression = f"variables.{parent}.map(it, {condition}, it.{name})"
        self.variables.append(Variable(name=name, expression=expression))


class _Part(Struct, frozen=True, kw_only=True):
    """A JSON object of the configs: the models it may have, and the variable that holds it."""

    path: tuple[str, ...]
    models: Models
    variable: str


def checks(models: Models) -> Checks:
    """Return the checks of all configs, given the models of the root by kind."""
    made = Checks()
    _check_root(made, models)
    _check_part(made, _Part(path=(), models=models, variable=CONFIGS), models)
    return made


def literal(text: str) -> str:
    """Return a text as a CEL string."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


def _check_root(made: Checks, models: Models) -> None:
    version = f"{_value('apiVersion')} == {literal(API_VERSION)}"
    made.refuse(("apiVersion",), CONFIGS, version, f"must be {API_VERSION}")
    known = _in(_value("kind"), models)
    made.refuse(("kind",), CONFIGS, known, f"must be {either(models)}")


def _check_part(made: Checks, part: _Part, root: Models) -> None:
    fields = _fields(part.models)
    known = f"it.all(name, {_in('name', fields)})"
    text = f"may only contain {', '.join(fields)}"
    made.refuse(part.path, part.variable, known, text)
    for name, info in fields.items():
        path = (*part.path, name)
        if path in (("apiVersion",), ("kind",)):
            continue
        having = {kind: model for kind, model in part.models.items() if name in model.fields()}
        if len(having) < len(part.models):
            _check_kinds(made, path, [kind for kind in root if kind in having])
        inner = {kind: part_of(model.fields()[name]) for kind, model in having.items()}
        models = {kind: model for kind, model in inner.items() if model}
        if models:
            if info.is_required():
                raise TypeError(f"object {name} is required: the policy assumes optional ones")
            _define_object(made, path, part.variable)
            _check_part(made, _Part(path=path, models=models, variable=name), root)
        else:
            _check_field(made, path, part.variable, info)
    for exclusion in _exclusions(part.models):
        _check_exclusion(made, part, exclusion)


def _check_kinds(made: Checks, path: tuple[str, ...], kinds: list[str]) -> None:
    """Add the rule that configs of other kinds must not set a field, not even to null."""
    absent = f"!it.?{'.?'.join(path)}.hasValue()"
    kind = _in(_value("kind"), kinds)
    made.refuse(path, CONFIGS, f"{kind} || {absent}", f"is only allowed in a {either(kinds)}")


def _define_object(made: Checks, path: tuple[str, ...], parent: str) -> None:
    """Add the rule and the variable of a field that holds a JSON object or nothing."""
    value = _value(path[-1])
    made.refuse(path, parent, f"{value} == null || type(it.{path[-1]}) == map", "must be an object")
    made.define(path[-1], parent, f"type({value}) == map")


def _check_field(made: Checks, path: tuple[str, ...], parent: str, info: FieldInfo) -> None:
    name = path[-1]
    if info.is_required() == (NoneType in get_args(info.annotation)):
        raise TypeError(f"field {name} must be either required or nullable")
    if SizePerDevice in get_args(info.annotation):
        _check_sizes(made, path, parent)
        return
    over, value = parent, _value(name)
    if not info.is_required():
        made.define(name, parent, f"{value} != null")
        over, value = name, "it"
    condition, text = _rule(name, info, value)
    required = "is required and " if info.is_required() else ""
    made.refuse(path, over, condition, f"{required}{text}")


def _check_sizes(made: Checks, path: tuple[str, ...], parent: str) -> None:
    _define_object(made, path, parent)
    keys = f"it.all(device, device.matches({literal(DEVICE_KEY)}))"
    text = "must name each device by UUID (GPU-… or MIG-…) or by index (0 to 31)"
    made.refuse(path, path[-1], keys, text)
    condition, text = _size("one")
    each = f"it.map(device, it[device]).all(one,\n{condition})"
    made.refuse(path, path[-1], each, f"of each device {text}")


def _check_exclusion(made: Checks, part: _Part, exclusion: Exclusion) -> None:
    other = f"{_value(exclusion.field)} != {literal(exclusion.value)}"
    made.refuse(
        (*part.path, exclusion.forbidden),
        part.variable,
        f"{other} || {_value(exclusion.forbidden)} == null",
        f"must not be set when {exclusion.field} is {exclusion.value}",
    )


def _rule(name: str, info: FieldInfo, it: str) -> tuple[str, str]:
    """Return CEL for whether the value `it` keeps the rule of a field, and the rule in words."""
    kinds = {info.annotation, *get_args(info.annotation)}
    if names := names_of(info):
        return _in(it, names), f"must be {either(names)}"
    if bool in kinds:
        return f"type({it}) == bool", "must be true or false"
    if Size in kinds:
        return _size(it)
    least = next((bound.ge for bound in info.metadata if isinstance(bound, Ge)), None)
    most = next((bound.le for bound in info.metadata if isinstance(bound, Le)), None)
    if int not in kinds or None in (least, most):
        raise TypeError(f"field {name} has no rule, so the admission policy cannot check it")
    return (
        f"type({it}) == int && {it} >= {least} && {it} <= {most}",
        f"must be a whole number from {least} to {most}",
    )


def _size(it: str) -> tuple[str, str]:
    # The pattern comes before the quantity: Go takes hours for an exponent of nine digits.
    parts = (
        f"(type({it}) == string || type({it}) == int || type({it}) == double)",
        f"string({it}).size() <= {LONGEST_QUANTITY}",
        f"string({it}).matches({literal(PATTERN)})",
        f"quantity(string({it})).compareTo(quantity({literal(LEAST_LIMIT)})) >= 0",
    )
    text = f"must be a quantity of at least {LEAST_LIMIT}, such as 512Mi or 10Gi"
    return "\n&& ".join(parts), text


def _fields(models: Models) -> dict[str, FieldInfo]:
    """Return the fields that a part has in any kind of config, in the order of the first kind."""
    fields: dict[str, FieldInfo] = {}
    for model in models.values():
        for name, info in model.fields().items():
            first = fields.setdefault(name, info)
            if _says(first) != _says(info):
                raise TypeError(f"field {name} has another rule in another kind")
    return fields


def _says(field: FieldInfo) -> tuple[object, ...]:
    if part_of(field) is not None or get_origin(field.annotation) is Literal:  # its kind
        return (field.is_required(),)
    return field.annotation, field.metadata, field.is_required()


def _exclusions(models: Models) -> Iterator[Exclusion]:
    """Yield each exclusion once; it applies to every kind that has the field."""
    seen: dict[Exclusion, None] = {}
    for model in models.values():
        seen |= dict.fromkeys(model.exclusions)
    for exclusion in seen:
        for kind, model in models.items():
            if exclusion not in model.exclusions and exclusion.forbidden in model.fields():
                raise TypeError(f"{kind} lacks an exclusion of {exclusion.forbidden}")
        yield exclusion


def _value(name: str) -> str:
    """Return CEL for the value of a field of `it`; null when it is not there."""
    return f"it.?{name}.orValue(null)"


def _in(value: str, names: Iterable[str]) -> str:
    """Return CEL for whether a value is one of the names."""
    known = [literal(name) for name in names]
    return f"{value} == {known[0]}" if len(known) == 1 else f"{value} in [{', '.join(known)}]"
