"""What a profile says of one GPU besides its card: how a real one differed when it was gathered.

In: a profile's YAML, mostly written by `simulate up --from` (simulator/archive.py). Out: validated
parts of a GPU. A fact or text replaces that of the card.
"""

import uuid
from typing import Annotated, Literal

import pydantic

from dra_driver.simulator.layout import (
    MAX_COMPUTE_INSTANCES,
    MAX_GPU_INSTANCES,
    MAX_LINKS,
    Fact,
    Text,
)
from dra_driver.simulator.parts import Count, ShortText, one_of

Number = Annotated[int, pydantic.Field(gt=-(2**63), lt=2**63)]
FunctionName = Annotated[
    str, pydantic.StringConstraints(pattern=r"^(\*|nvml[A-Za-z0-9_]*)$", max_length=63)
]
# The numbers of compute instance profiles in NVML, and of slices in the simulated library.
_MOST_PROFILES = 16
_MOST_SLICES = 32


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class LinkTo(_Part):
    """One NVLink: `remote_device` is NVML's number of what is at its end, at address `remote`."""

    to: Literal["gpu", "switch", "nothing"] = "nothing"
    version: Count = 0
    remote: Annotated[str, pydantic.StringConstraints(max_length=27)] = ""
    remote_device: Count = 0
    up: bool = True


class ComputeInstance(_Part):
    """One compute instance of a GPU instance; `index` and `uuid` are those of its MIG device."""

    id: Annotated[int, pydantic.Field(ge=0, lt=MAX_COMPUTE_INSTANCES)]
    profile: Annotated[int, pydantic.Field(ge=0, lt=_MOST_PROFILES)]
    start: Annotated[int, pydantic.Field(ge=0, lt=_MOST_SLICES)]
    size: Annotated[int, pydantic.Field(gt=0, le=_MOST_SLICES)]
    index: Annotated[int, pydantic.Field(ge=0, lt=MAX_GPU_INSTANCES)]
    uuid: Annotated[
        str,
        pydantic.StringConstraints(pattern=r"^MIG-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"),
    ]


class GpuInstance(_Part):
    """One GPU instance that is there at first; `profile` is NVML's id of its profile."""

    id: Annotated[int, pydantic.Field(ge=0, lt=MAX_GPU_INSTANCES)]
    profile: Count
    start: Count
    compute: list[ComputeInstance] = []


class Told(_Part):
    """How a GPU differs from its card.

    `facts` and `texts` are by the names in `layout` (null: NVML does not report it), `links` one by
    one (null: there is none of that number), `instances` what it is divided into at first, and
    `refusals` calls that fail, with their return code (* for all). A call that `hangs` does not
    return. One that is `lost` has fallen off the bus.
    """

    lost: bool = False
    facts: dict[str, Number | None] = {}
    texts: dict[str, ShortText | None] = {}
    links: Annotated[list[LinkTo | None], pydantic.Field(max_length=MAX_LINKS)] | None = None
    fabric_cluster: uuid.UUID | None = None
    instances: list[GpuInstance] = []
    refusals: dict[FunctionName, Annotated[int, pydantic.Field(gt=0, le=999)]] = {}
    hangs: FunctionName | None = None

    @pydantic.field_validator("facts")
    @classmethod
    def _known_facts(cls, value: dict[str, int | None]) -> dict[str, int | None]:
        return {one_of(name, Fact.__members__): number for name, number in value.items()}

    @pydantic.field_validator("texts")
    @classmethod
    def _known_texts(cls, value: dict[str, str | None]) -> dict[str, str | None]:
        return {one_of(name, Text.__members__): text for name, text in value.items()}
