"""The content of a scenario's file, once its matrices are expanded: strict, and without a GPU.

In: plain values (bench/scenarios/read.py). Out: a `Scenario`. What depends on the card, such
as shares of its memory and MIG profiles by size, is still as it was written;
bench/scenarios/plan.py turns it into strategies. The keys of a work are the fields of `Workload`.
"""

import json
import shlex
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from dra_driver.bench.model import Goal
from dra_driver.bench.workload import Strict, Workload

WORK_KEYS = tuple(
    name for name in Workload.model_fields if name not in ("seconds", "warm_up", "seed")
)
"""The fields of a work, except those that the scenario has: the time and the seed."""

PERCENT = r"(100|[1-9]?[0-9])%"

Shared = Literal["alone", "whole-gpus", "time-slicing", "mps", "shares", "mig"]
Name = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[^\n]*$")]
WorkKeys = dict[str, JsonValue]


class Limits(Strict):
    """What a tenant asks of MPS."""

    threads: Annotated[int, Field(ge=1, le=100, description="Percent of the SMs.")] | None = None
    memory: (
        Annotated[int, Field(ge=1, description="MiB of GPU memory.")]
        | Annotated[str, Field(pattern=f"^{PERCENT}$", description="A part of it, such as 25%.")]
        | None
    ) = None


class TenantSpec(Strict):
    """One tenant of a case, or several equal ones."""

    work: Annotated[str, Field(description="One of `works`.")]
    with_: Annotated[
        WorkKeys, Field(alias="with", description="Keys of the work that differ here.")
    ] = {}  # noqa: RUF012 (pydantic copies it)
    role: Annotated[
        str, Field(description="What it is in every case; the work's name if not set.")
    ] = ""
    count: (
        Annotated[int, Field(ge=1, le=64, description="How many there are.")]
        | Annotated[
            Literal["rest"],
            Field(description="As many MIG devices as there is room for beside the others."),
        ]
    ) = 1
    limits: Limits = Limits()
    priority: Annotated[
        Literal[0, 1], Field(description="CUDA_MPS_CLIENT_PRIORITY: 1 is below normal.")
    ] = 0
    profile: Annotated[
        str,
        Field(
            pattern=r"^([1-9][0-9]*g(\.[1-9][0-9]*gb([+-][a-z.]+)?)?|smallest|largest)?$",
            description="A MIG profile: 1g.10gb, 1g, smallest or largest.",
        ),
    ] = ""
    gpus: Annotated[
        int, Field(ge=1, le=16, description="Whole GPUs of a tenant that is a command.")
    ] = 1
    after: Annotated[
        float, Field(ge=0, le=3600, description="Seconds after the others at which it begins.")
    ] = 0.0
    launch: Annotated[
        int, Field(ge=0, le=63, description="Started when those of lower numbers are ready.")
    ] = 0


class CaseSpec(Strict):
    """One case."""

    name: Name
    sharing: Annotated[
        Shared | None,
        Field(description="`mig` if tenants have a profile, `alone` for one tenant if not set."),
    ] = None
    tenants: Annotated[tuple[TenantSpec, ...], Field(min_length=1, max_length=64)]
    limits: Annotated[
        Literal["equal"] | None, Field(description="MPS divides the GPU among the tenants.")
    ] = None
    against: Annotated[
        tuple[str, ...] | None, Field(description="The cases that ratios compare with.")
    ] = None
    undisturbed: Annotated[
        tuple[str, ...],
        Field(description="The cases of the same shares without neighbours: for isolation."),
    ] = ()
    instead: Annotated[
        str, Field(description="The case to compare with where this one cannot be run.")
    ] = ""
    group: Annotated[str, Field(description="The best is sought among cases of one group.")] = ""


class Scenario(Strict):
    """A study."""

    answers: Annotated[str, Field(min_length=1, description="The question, in a sentence.")]
    seconds: Annotated[float, Field(gt=0, le=86400, description="Seconds that tenants work.")] = (
        20.0
    )
    warm_up: Annotated[float, Field(ge=0, le=3600, description="Seconds of work before it.")] = 2.0
    repetitions: Annotated[int, Field(ge=1, le=100, description="Rounds of all cases.")] = 3
    seed: Annotated[
        int, Field(description="Seed of arrivals, and of the order of cases in a round.")
    ] = 1
    minutes: Annotated[
        float | None, Field(gt=0, description="After that many, no further case begins.")
    ] = None
    goal_ms: Annotated[
        float | None,
        Field(gt=0, description="Find the smallest share whose 99th percentile is at most this."),
    ] = None
    works: dict[str, WorkKeys]
    against: Annotated[
        tuple[str, ...], Field(description="`against` of all cases that do not set it.")
    ] = ()
    goals: tuple[Goal, ...] = ()
    cases: Annotated[tuple[CaseSpec, ...], Field(min_length=1, max_length=500)]

    def work(self, tenant: TenantSpec, memory_mib: int | None) -> Workload:
        """Return the work of a tenant; percentages of memory are of `memory_mib`.

        Raises ValueError, such as pydantic's ValidationError, if the work is invalid.
        """
        if tenant.work not in self.works:
            raise ValueError(f'there is no work "{tenant.work}"')
        keys = {**self.works[tenant.work], **tenant.with_}
        for name, value in keys.items():
            if name == "command" and isinstance(value, str):
                keys[name] = list(shlex.split(value))
            elif name.endswith("_mib") and isinstance(value, str):
                keys[name] = share_of(value, memory_mib)
        times = {"seconds": self.seconds, "warm_up": self.warm_up, "seed": self.seed}
        return Workload.model_validate_json(json.dumps({**keys, **times}))

    @model_validator(mode="after")
    def _names_are_names(self) -> Self:
        names = {case.name for case in self.cases}
        roles = {tenant.role or tenant.work for case in self.cases for tenant in case.tenants}
        for spec in self.cases:
            named = (*(spec.against or ()), *spec.undisturbed, spec.instead)
            if missing := [name for name in named if name and name not in names]:
                raise ValueError(
                    f'"{spec.name}" is compared with "{missing[0]}", which is not a case'
                )
        if missing := [name for name in self.against if name not in names]:
            raise ValueError(f'`against` names "{missing[0]}", which is not a case')
        if missing := [goal.role for goal in self.goals if goal.role and goal.role not in roles]:
            raise ValueError(f'a goal is for the role "{missing[0]}", which no tenant has')
        return self


def share_of(percent: str, memory_mib: int | None) -> int:
    """Return a percentage of memory in MiB. Raises ValueError if the memory is unknown."""
    if not percent.endswith("%") or not percent[:-1].isdecimal():
        raise ValueError(f"must be MiB, or a part such as 25%, not {percent!r}")
    if memory_mib is None:
        raise ValueError("the GPU does not report how much memory it has: write MiB, not percent")
    return max(1, memory_mib * int(percent[:-1]) // 100)
