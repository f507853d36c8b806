"""What all config models have in common: strict types, no unknown field, frozen, camelCase."""

from dataclasses import dataclass
from typing import ClassVar, Final, Self

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel

API_VERSION: Final = "resource.nvidia.com/v1beta1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """Where `field` has `value`, the field `forbidden` must not be set. Names as users write them.

    `text` is the error.
    """

    field: str
    value: str
    forbidden: str
    text: str


class ConfigModel(BaseModel):
    """Parent of every config model.

    A field's Python name is never accepted from a user: only the camelCase name of the API is.
    """

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        serialize_by_alias=True,
    )

    exclusions: ClassVar[tuple[Exclusion, ...]] = ()
    """Fields that do not go together; looked at when each of them alone is right."""

    @model_validator(mode="after")
    def _excluded_fields_are_not_set(self) -> Self:
        names = {field.alias: name for name, field in type(self).model_fields.items()}
        for rule in self.exclusions:
            value = getattr(self, names[rule.field])
            if value == rule.value and getattr(self, names[rule.forbidden]) is not None:
                raise ValueError(rule.text)
        return self
