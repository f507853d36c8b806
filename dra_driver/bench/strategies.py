"""How tenants use a GPU: a strategy with its settings, as a value, and its tenants.

Each tenant is a `Part` with its own workload and settings. The runners know which
strategies a machine or a cluster allows; this module does not.
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from dra_driver.bench.workload import Strict, Workload, WorkloadKind


class Sharing(StrEnum):
    """The ways in which tenants use a device."""

    ALONE = "alone"
    WHOLE_GPUS = "whole-gpus"
    """Each tenant has one or several whole GPUs, and shares none."""
    TIME_SLICING = "time-slicing"
    MPS = "mps"
    MPS_LIMITS = "mps-limits"
    SHARES = "shares"
    MIG = "mig"


PROFILE = r"[1-9][0-9]*g\.[1-9][0-9]*gb([+-][a-z.]+)?"
"""The form of MIG profiles' names."""

_WANTED_PROFILE = rf"{PROFILE}|[1-9][0-9]*g|smallest|largest"
"""Or a profile by its size, which stays as it was written if there is no such profile."""

_PLAIN = re.compile(r"([1-9][0-9]*)g\.([1-9][0-9]*)gb")

UNDER_MPS = frozenset({Sharing.MPS, Sharing.MPS_LIMITS})


class Part(Strict):
    """One tenant of a strategy.

    Attributes:
        role: its role in every case; figures of the same role are compared.
        thread_percentage: the most of the SMs that it asks MPS for, if not all that the strategy
            allows; `memory_mib` is the same for GPU memory.
        priority: CUDA_MPS_CLIENT_PRIORITY: 0 is normal, 1 is below normal.
        profile: that of its MIG device, if tenants have different ones.
        gpus: how many whole GPUs it has, if they are not shared.
        after: seconds after the others at which it begins to work.
        launch: it is started when all tenants with a lower number here are ready.
    """

    role: str
    work: Workload
    thread_percentage: Annotated[int, Field(ge=1, le=100)] | None = None
    memory_mib: Annotated[int, Field(ge=1)] | None = None
    priority: Annotated[int, Field(ge=0, le=1)] = 0
    profile: Annotated[str, Field(pattern=f"^({_WANTED_PROFILE})?$")] = ""
    gpus: Annotated[int, Field(ge=1, le=16)] = 1
    after: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 0.0
    launch: Annotated[int, Field(ge=0, le=63)] = 0

    @property
    def is_command(self) -> bool:
        """Whether its work is a user's own command."""
        return self.work.kind is WorkloadKind.COMMAND

    @property
    def is_client_of_mps(self) -> bool:
        """Whether it has a setting that only exists with MPS."""
        return bool(self.thread_percentage or self.memory_mib or self.priority)

    def environment(self) -> dict[str, str]:
        """Return the variables with its own settings as a client of MPS; its GPU is the first."""
        environment = {}
        if self.thread_percentage is not None:
            environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(self.thread_percentage)
        if self.memory_mib is not None:
            environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={self.memory_mib}M"
        if self.priority:
            environment["CUDA_MPS_CLIENT_PRIORITY"] = str(self.priority)
        return environment


def beginnings(seats: Sequence[Part]) -> list[float]:
    """Return how many seconds after the common moment each tenant is told to begin.

    A command does not warm up: it begins when the others' warm-up is over.
    """
    warm_up = max((seat.work.warm_up for seat in seats if not seat.is_command), default=0.0)
    return [seat.after + (warm_up if seat.is_command else 0.0) for seat in seats]


def longest(seats: Sequence[Part]) -> float:
    """Return how many seconds after the common moment the last tenant's time is over."""
    return max(
        begin + seat.work.seconds + (0.0 if seat.is_command else seat.work.warm_up)
        for begin, seat in zip(beginnings(seats), seats, strict=True)
    )


def watcher(seats: Sequence[Part]) -> int | None:
    """Return which tenant watches the card while it works; a command cannot."""
    return next((number for number, seat in enumerate(seats) if not seat.is_command), None)


class Strategy(Strict):
    """One way of sharing with its settings and tenants, named after its case.

    Limits are for each tenant. Memory is in MiB.
    """

    sharing: Annotated[Sharing, Field(strict=False)]
    name: str
    thread_percentage: Annotated[int, Field(ge=1, le=100)] | None = None
    memory_mib: Annotated[int, Field(ge=1)] | None = None
    profile: Annotated[str, Field(pattern=f"^({_WANTED_PROFILE})?$")] = ""
    parts: Annotated[tuple[Part, ...], Field(min_length=1, max_length=64)]

    @model_validator(mode="after")
    def _settings_fit(self) -> Self:
        limited = self.thread_percentage is not None or self.memory_mib is not None
        if limited != (self.sharing is Sharing.MPS_LIMITS):
            raise ValueError("limits belong to mps-limits, which has at least one")
        if all(self.profiles) != (self.sharing is Sharing.MIG):
            raise ValueError("a MIG profile belongs to the strategy mig")
        if self.sharing is Sharing.ALONE and self.tenants != 1:
            raise ValueError("alone is one tenant")
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.sharing not in UNDER_MPS and any(part.is_client_of_mps for part in self.parts):
            raise ValueError("limits and priorities of a tenant need MPS")
        several = [part for part in self.parts if part.gpus > 1]
        if several and self.sharing is not Sharing.WHOLE_GPUS:
            raise ValueError("several GPUs for a tenant belong to whole-gpus")
        if not all(part.is_command for part in several):
            raise ValueError("only a command uses several GPUs")
        return self

    @property
    def tenants(self) -> int:
        """Return how many there are."""
        return len(self.parts)

    @property
    def profiles(self) -> tuple[str, ...]:
        """Return the MIG profile of each tenant; empty for none."""
        return tuple(part.profile or self.profile for part in self.parts)

    @property
    def gpus(self) -> int:
        """Return how many whole GPUs it needs."""
        return sum(part.gpus for part in self.parts) if self.sharing is Sharing.WHOLE_GPUS else 1

    def seats(self, seed: int) -> tuple[Part, ...]:
        """Return all tenants with this seed."""
        return tuple(
            part.model_copy(update={"work": part.work.model_copy(update={"seed": seed})})
            for part in self.parts
        )

    def role(self, tenant: int) -> str:
        """Return the role of a tenant."""
        return self.parts[tenant].role

    @property
    def roles(self) -> tuple[str, ...]:
        """Return all roles."""
        return tuple(dict.fromkeys(part.role for part in self.parts))


def is_plain(profile: str) -> bool:
    """Whether a MIG profile is for computing alone, without media engines and the like."""
    return _PLAIN.fullmatch(profile) is not None


def profile_size(profile: str) -> tuple[int, int]:
    """Return a MIG profile's compute slices, and its memory in GB: 3 and 40 for `3g.40gb`."""
    match = _PLAIN.match(profile)
    return (int(match[1]), int(match[2])) if match else (0, 0)
