"""What all config models have in common: frozen dataclasses whose annotations say what users write.

A field's annotation is its type, and beside that a mark: `Checked`, the rule that its value must
keep, or `Converted`, the function that reads it. Another model needs none, and neither does what is
taken as it stands: an `object`, or a `Literal` by which the model was chosen. read.py makes the
models.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from functools import cache
from types import NoneType
from typing import Annotated, Any, ClassVar, Final, Literal, get_args, get_origin

from resource_nvidia_com.rules import Checked, Rule

API_VERSION: Final = "resource.nvidia.com/v1beta1"

OTHERS: Final = "others"
"""A model with a field of this name keeps in it what no other field knows; the rest refuse that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """Where `field` has `value`, the field `forbidden` must not be set. Names as users write them.

    `text` is the error.
    """

    field: str
    value: str
    forbidden: str
    text: str


@dataclass(frozen=True, slots=True)
class Converted:
    """Mark of a model's field: the function makes of its value what is read. It raises ValueError.

    `missing` is the error where the field is not written; by default one that names it.
    """

    function: Callable[[object], object]
    missing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelField:
    """A field as its model's annotation has it.

    Attributes:
        attribute: its name in Python; users write it in camelCase.
        mark: how its value is checked or read.
        model: what it holds, or a list of; None where it holds a value.
        is_list: it holds a list.
        is_nullable: null stands for what is not set.
        default: what it has without a value; MISSING where it needs one.
    """

    attribute: str
    mark: Checked | Converted | None
    model: "type[ConfigModel] | None"
    is_list: bool
    is_nullable: bool
    default: object

    @property
    def is_required(self) -> bool:
        """Whether users must write it."""
        return self.default is MISSING

    @property
    def rule(self) -> Rule | None:
        """The rule that its value must keep."""
        return self.mark.rule if isinstance(self.mark, Checked) else None


class ConfigModel:
    """Parent of every config model."""

    __slots__ = ()

    exclusions: ClassVar[tuple[Exclusion, ...]] = ()
    """Fields that do not go together; looked at when each of them alone is right."""

    @classmethod
    @cache
    def fields(cls) -> Mapping[str, ModelField]:
        """Return the fields by the names that users write."""
        own: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(cls)  # type: ignore[arg-type]
        return {_camel(one.name): _field(one) for one in own if one.name != OTHERS}


def _field(field: dataclasses.Field[Any]) -> ModelField:
    annotated = get_origin(field.type) is Annotated
    kind, *marks = get_args(field.type) if annotated else (field.type,)
    options = get_args(kind) or (kind,)
    models = [one for one in options if isinstance(one, type) and issubclass(one, ConfigModel)]
    if not (marks or models or kind is object or get_origin(kind) is Literal):
        raise TypeError(f"field {field.name} has no rule, so it would hold whatever users write")
    return ModelField(
        attribute=field.name,
        mark=next(iter(marks), None),
        model=next(iter(models), None),
        is_list=get_origin(kind) is list,
        is_nullable=NoneType in options,
        default=field.default,
    )


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
