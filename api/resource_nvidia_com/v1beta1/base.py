"""What all config models have in common: strict types, no unknown field, frozen, camelCase."""

from typing import Final

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

API_VERSION: Final = "resource.nvidia.com/v1beta1"


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
