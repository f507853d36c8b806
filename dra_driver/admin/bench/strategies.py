"""How tenants use a GPU: a strategy with its settings, as a value, and the usual ones.

Which of them a machine or a cluster allows is said by the runners; nothing here asks anybody.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Sharing(StrEnum):
    """The ways in which tenants use a device."""

    ALONE = "alone"
    TIME_SLICING = "time-slicing"
    MPS = "mps"
    MPS_LIMITS = "mps-limits"
    SHARES = "shares"
    MIG = "mig"
    MIG_TIME_SLICING = "mig-time-slicing"
    MIG_MPS = "mig-mps"


PROFILE = r"[1-9][0-9]*g\.[1-9][0-9]*gb([+-][a-z.]+)?"
"""How MIG profiles are named."""

_PLAIN = re.compile(r"([1-9][0-9]*)g\.([1-9][0-9]*)gb")

UNDER_MPS = frozenset({Sharing.MPS, Sharing.MPS_LIMITS, Sharing.MIG_MPS})
OF_MIG = frozenset({Sharing.MIG, Sharing.MIG_TIME_SLICING, Sharing.MIG_MPS})


class Strategy(BaseModel):
    """One way with its settings. A limit holds for each tenant; memory in MiB."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    sharing: Annotated[Sharing, Field(strict=False)]
    tenants: Annotated[int, Field(ge=1, le=64)] = 1
    thread_percentage: Annotated[int, Field(ge=1, le=100)] | None = None
    memory_mib: Annotated[int, Field(ge=1)] | None = None
    profile: Annotated[str, Field(pattern=f"^({PROFILE})?$")] = ""

    @model_validator(mode="after")
    def _settings_fit(self) -> Self:
        limited = self.thread_percentage is not None or self.memory_mib is not None
        if limited != (self.sharing is Sharing.MPS_LIMITS):
            raise ValueError("limits belong to mps-limits, which has at least one")
        if bool(self.profile) != (self.sharing in OF_MIG):
            raise ValueError("a MIG profile belongs to the strategies of MIG devices")
        if self.sharing is Sharing.ALONE and self.tenants != 1:
            raise ValueError("alone is one tenant")
        return self

    @property
    def name(self) -> str:
        """Name it; no other strategy of other settings has the same name."""
        parts = [str(self.sharing)]
        if self.profile:
            parts.append(self.profile.replace("+", "-"))
        if self.thread_percentage is not None:
            parts.append(f"{self.thread_percentage}pct")
        if self.memory_mib is not None:
            parts.append(f"{self.memory_mib}mib")
        if self.sharing is not Sharing.ALONE:
            parts.append(f"x{self.tenants}")
        return "-".join(parts)

    @property
    def label(self) -> str:
        """Say it in a few words for people."""
        limits = [
            *([f"{self.thread_percentage} %"] if self.thread_percentage is not None else []),
            *([_size(self.memory_mib)] if self.memory_mib is not None else []),
        ]
        match self.sharing:
            case Sharing.ALONE:
                return "alone"
            case Sharing.TIME_SLICING:
                how = "time-slicing"
            case Sharing.MPS:
                how = "MPS"
            case Sharing.MPS_LIMITS:
                how = f"MPS with {', '.join(limits)}"
            case Sharing.SHARES:
                how = "shares"
            case Sharing.MIG:
                how = f"MIG {self.profile}"
            case Sharing.MIG_TIME_SLICING:
                how = f"time-slicing of MIG {self.profile}"
            case Sharing.MIG_MPS:
                how = f"MPS on MIG {self.profile}"
        return f"{self.tenants} by {how}"


ALONE = Strategy(sharing=Sharing.ALONE)


def usual(tenants: Iterable[int], memory_mib: int | None) -> tuple[Strategy, ...]:
    """Return the strategies of whole GPUs, for each number of tenants; alone comes first.

    Memory is not limited where nobody knows how much the GPU has.
    """
    found = [ALONE]
    for number in dict.fromkeys(tenants):
        found += [
            Strategy(sharing=Sharing.TIME_SLICING, tenants=number),
            Strategy(sharing=Sharing.MPS, tenants=number),
            equal_shares(number, memory_mib),
        ]
    return tuple(found)


def equal_shares(tenants: int, memory_mib: int | None) -> Strategy:
    """Return MPS with limits that divide a GPU among its tenants, rounded down."""
    return Strategy(
        sharing=Sharing.MPS_LIMITS,
        tenants=tenants,
        thread_percentage=max(1, 100 // tenants),
        memory_mib=None if memory_mib is None else max(1, memory_mib // tenants),
    )


def of_mig(
    profile: str, *, fit: int, tenants: Iterable[int], with_layers: bool
) -> tuple[Strategy, ...]:
    """Return what can be done with MIG devices of a profile.

    `fit` is how many of them one GPU has room for; with layers, `tenants` share one of them.
    """
    found = [Strategy(sharing=Sharing.MIG, tenants=fit, profile=profile)]
    if with_layers:
        found += [
            Strategy(sharing=sharing, tenants=number, profile=profile)
            for number in tenants
            for sharing in (Sharing.MIG_TIME_SLICING, Sharing.MIG_MPS)
        ]
    return tuple(found)


def is_plain(profile: str) -> bool:
    """Whether a MIG profile is for computing alone, without media engines and the like."""
    return _PLAIN.fullmatch(profile) is not None


def profile_size(profile: str) -> tuple[int, int]:
    """Return a MIG profile's compute slices, and its memory in GB: of `3g.40gb` 3 and 40."""
    found = _PLAIN.match(profile)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _size(memory_mib: int | None) -> str:
    if memory_mib is None:
        return ""
    return f"{memory_mib / 1024:.3g} GiB" if memory_mib >= 1024 else f"{memory_mib} MiB"
