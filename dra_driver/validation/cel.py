"""The rules of the config models, said in CEL. Pure.

In: a model of `api/`. Out: CEL that gives the list of what is wrong with a JSON object, in the very
words in which the model says it. Rules of Kubernetes' CEL that made this: there is no `let` (a list
of one element mapped to its use stands in for it), a map knows no order, lists hold one type, and
only what is in Kubernetes' CEL library up to 1.33 may be used, as a new API server accepts only
what its predecessor understood.

What a user misspelt cannot be guessed in CEL: errors here lack "did you mean".
"""

from collections.abc import Iterable, Iterator
from types import NoneType
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from resource_nvidia_com.decode import (
    MISSING_KIND,
    MISSING_VERSION,
    MODELS,
    WANT_OBJECT,
    fields_at,
    inner_model,
    rule_of,
)
from resource_nvidia_com.quantity import PATTERN
from resource_nvidia_com.rules import (
    INDEX,
    INTEGER,
    LONGEST_QUANTITY,
    NO_QUANTITY,
    SHOWN,
    UUID_PREFIXES,
    WANT_DEVICE,
    WANT_INDEX,
    WANT_QUANTITY,
    WANT_SIZES,
    Flag,
    OneOf,
    Rule,
    Size,
    SizePerDevice,
    WholeNumber,
)
from resource_nvidia_com.v1beta1.base import API_VERSION, ConfigModel

_QUOTE = '"'
_ROOT_FIELDS = ("apiVersion", "kind")
"""Fields that `root_problem` looks at."""


def literal(text: str) -> str:
    """Return a text as a CEL string."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


def root_problem(config: str) -> str:
    """Return CEL for what is wrong with apiVersion or kind of the config: a text, '' if nothing."""
    unknown_version = _joined("unknown apiVersion ", _shown("version"), f": want {API_VERSION}")
    unknown_kind = _joined("unknown kind ", _shown("kind"), f": one of {', '.join(MODELS)}")
    of_kind = _first(
        ("kind == null || kind == ''", literal(MISSING_KIND)),
        (f"type(kind) != string || !(kind in {_names(MODELS)})", unknown_kind),
    )
    of_version = _first(
        ("version == null || version == ''", literal(MISSING_VERSION)),
        (f"version != {literal(API_VERSION)}", unknown_version),
        otherwise=_let("kind", f"{config}.?kind.orValue(null)", of_kind),
    )
    return _let("version", f"{config}.?apiVersion.orValue(null)", of_version)


def model_problems(model: type[BaseModel], value: str, path: tuple[str, ...] = ()) -> str:
    """Return CEL for the list of what is wrong with the JSON object `value`.

    Args:
        model: the model it must fit.
        value: CEL for the object, known to be one.
        path: the fields that lead to it.
    """
    fields = fields_at(model, ())
    leaves: list[str] = []
    parts: list[str] = []
    for name, field in fields.items():
        if name in _ROOT_FIELDS:
            continue
        inner = inner_model(field)
        if inner is None:
            leaves.append(_field_problem(field, name, value, path))
        else:
            parts.append(_part_problems(inner, f"{value}.{name}", (*path, name)))
    if leaves:
        parts.insert(0, f"[{', '.join(leaves)}].filter(text, text != '')")
    parts.append(_unknown_fields(fields, value, path))
    found = " + ".join(parts)
    exclusions = ", ".join(_exclusions(model, value, path))
    if not exclusions:
        return found
    alone = f"found{len(path)}"  # a name of its own in each model around
    others = f"{alone}.size() > 0 ? {alone} : [{exclusions}].filter(text, text != '')"
    return _let(alone, found, others)


def _field_problem(field: FieldInfo, name: str, value: str, path: tuple[str, ...]) -> str:
    rule = rule_of(field)
    if rule is None:
        raise TypeError(f"field {name} has no rule, so the admission policy cannot check it")
    if field.is_required() == (NoneType in get_args(field.annotation)):
        raise TypeError(f"field {name} must be either required or nullable")
    at = f"{value}.{name}"
    dotted = ".".join((*path, name))
    wrong = _rule_problem(rule, at, dotted)
    if field.is_required():
        choice = f": one of {', '.join(rule.values)}" if isinstance(rule, OneOf) else ""
        missing = literal(f'missing field "{dotted}"{choice}')
        return _first((f"!has({at})", missing), otherwise=wrong)
    return _first((f"!has({at}) || {at} == null", "''"), otherwise=wrong)


def _part_problems(model: type[BaseModel], at: str, path: tuple[str, ...]) -> str:
    no_object = _joined(f"{'.'.join(path)}: {WANT_OBJECT}, got ", _shown(at))
    return (
        f"(!has({at}) || {at} == null ? [] : type({at}) != map ? [{no_object}] : "
        f"{model_problems(model, at, path)})"
    )


def _unknown_fields(fields: Iterable[str], value: str, path: tuple[str, ...]) -> str:
    names = list(fields)
    before = "".join(f"{part}." for part in path)
    text = _joined(
        f'unknown field "{before}', _plain("key"), f'": allowed here: {", ".join(names)}'
    )
    return f"{value}.map(key, !(key in {_names(names)}), {text})"


def _exclusions(model: type[BaseModel], value: str, path: tuple[str, ...]) -> Iterator[str]:
    for rule in model.exclusions if issubclass(model, ConfigModel) else ():
        at = f"{value}.{rule.forbidden}"
        met = f"{value}.{rule.field} == {literal(rule.value)} && has({at}) && {at} != null"
        yield _first((met, literal(f"{'.'.join(path)}: {rule.text}")))


def _rule_problem(rule: Rule, at: str, path: str) -> str:
    """Return CEL for what is wrong with the value at `at`: a text, '' if nothing."""
    match rule:
        case OneOf():
            return _name_problem(rule, at, path)
        case WholeNumber():
            return _first(
                (f"type({at}) != int", _joined(f"{path}: want a whole number, got ", _shown(at))),
                (f"{at} < {rule.least}", literal(f"{path}: {rule.too_small}")),
                (f"{at} > {rule.most}", literal(f"{path}: {rule.too_large}")),
            )
        case Flag():
            wrong = _joined(f"{path}: want true or false, got ", _shown(at))
            return _first((f"type({at}) != bool", wrong))
        case Size():
            where = literal(f"{path}: ")
            low = literal("invalid limit: default value set too low: ")
            return _size_problem(rule.least, at, where, low)
        case SizePerDevice():
            return _sizes_problem(rule, at, path)


def _name_problem(rule: OneOf, at: str, path: str) -> str:
    names = ", ".join(rule.values)
    wrong = _joined(f"{path}: want one of {names}, got ", _shown(at))
    unknown = _joined(
        f"{path}: unknown {rule.singular}: ", _plain(at), f", supported {rule.plural}: {names}"
    )
    return _first((f"type({at}) != string", wrong), (f"!({at} in {_names(rule.names)})", unknown))


def _size_problem(least: str, at: str, where: str, low: str) -> str:
    """Return CEL for what is wrong with one quantity. `where` and `low` are CEL texts."""
    wrong = f"{where} + {_joined(f'{WANT_QUANTITY}, got ', _shown(at))}"
    # The pattern comes first: Go takes hours for an exponent of nine digits.
    no_quantity = f"size.size() > {LONGEST_QUANTITY} || !size.matches({literal(PATTERN)})"
    too_low = f"quantity(size).compareTo(quantity({literal(least)})) < 0"
    one = _first(
        (no_quantity, f"{where} + {_joined(_QUOTE, _plain('size'), f'{_QUOTE} {NO_QUANTITY}')}"),
        (too_low, f"{where} + {low} + {_joined('', 'size', f': want at least {least}')}"),
    )
    kinds = " || ".join(f"type({at}) == {kind}" for kind in ("string", "int", "double"))
    return _first((f"!({kinds})", wrong), otherwise=_let("size", f"string({at})", one))


def _sizes_problem(rule: SizePerDevice, at: str, path: str) -> str:
    """Return CEL for what is wrong with limits by device; several texts are joined."""
    key = _plain("device")
    where = _joined(f"{path}.", key, ": ")
    known = " || ".join(f"device.startsWith({literal(one)})" for one in UUID_PREFIXES)
    low = _joined("invalid limit: value set too low: ", key, ": ")
    index = _joined("invalid device: invalid device index: ", key, f": {WANT_INDEX}")
    no_device = _joined(
        "invalid device: unable to parse key as an integer: ", key, f": {WANT_DEVICE}"
    )
    one = _first(
        (
            f"{known} || device.matches({literal(INDEX)})",
            _size_problem(rule.least, f"{at}[device]", where, low),
        ),
        (f"device.matches({literal(INTEGER)})", f"{where} + {index}"),
        otherwise=f"{where} + {no_device}",
    )
    wrong = _joined(f"{path}: {WANT_SIZES}, got ", _shown(at))
    texts = f"{at}.map(device, {one}).filter(text, text != '').join('; ')"
    return _first((f"type({at}) != map", wrong), otherwise=texts)


def _first(*cases: tuple[str, str], otherwise: str = "''") -> str:
    """Return CEL for the second half of the first pair whose first half holds."""
    return "(" + "".join(f"{when} ? {then} : " for when, then in cases) + f"{otherwise})"


def _joined(before: str, middle: str, after: str = "") -> str:
    parts = [literal(before) if before else "", middle, literal(after) if after else ""]
    return " + ".join(part for part in parts if part)


def _names(names: Iterable[str]) -> str:
    return f"[{', '.join(literal(name) for name in names)}]"


def _let(name: str, value: str, body: str) -> str:
    """Return CEL for `body`, in which `name` is `value`."""
    return f"[{value}].map({name}, {body})[0]"


def _plain(text: str) -> str:
    """Return CEL for `rules.plain`."""
    line = f"{text}.replace('\\n', '\\\\n').replace('\\r', '\\\\r')"
    return _let("line", line, f"line.size() > {SHOWN} ? line.substring(0, {SHOWN}) + '…' : line")


def _shown(value: str) -> str:
    """Return CEL for `rules.shown`."""
    body = _first(
        ("it == null", "'null'"),
        ("type(it) == string", _joined(_QUOTE, _plain("string(it)"), _QUOTE)),
        ("type(it) == bool", "(it ? 'true' : 'false')"),
        ("type(it) == map", "'an object'"),
        ("type(it) == list", "'a list'"),
        otherwise="string(it)",
    )
    return _let("it", value, body)
