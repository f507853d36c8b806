"""What a sharing strategy is: from configs to plans, from a plan to container edits and back.

A strategy first plans, which changes nothing that is in use, and says in its plans everything it
needs to apply and to undo them. A plan is plain JSON, so that it can be written down before
hardware is touched and carried out backwards by another process after a crash. A strategy makes as
many plans for a claim as there are parts that can be undone each by itself. What needs no change
has no plan.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dra_driver.cdi.model import Edits
from dra_driver.devices.model import Gpu, GpuUuid, MigDevice, MigUuid, Placement
from resource_nvidia_com.decode import Config

EXCLUSIVE = "Exclusive"
"""Name of the strategy for configs that name none."""


DeviceUuid = GpuUuid | MigUuid
"""What a process names its device by: a whole GPU's UUID or a MIG device's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPart:
    """Some memory slices of a GPU, or with no placement all of it."""

    gpu: GpuUuid
    placement: Placement | None = None

    def overlaps(self, other: "GpuPart") -> bool:
        """Tell whether two claims cannot have both."""
        if self.gpu != other.gpu:
            return False
        if self.placement is None or other.placement is None:
            return True
        return self.placement.overlaps(other.placement)


def overlap(some: Iterable[GpuPart], others: Collection[GpuPart]) -> bool:
    """Tell whether two claims cannot have what is in both."""
    return any(one.overlaps(other) for one in some for other in others)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigUnit:
    """A MIG device, and the GPU that it is on."""

    gpu: Gpu
    device: MigDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The devices of one claim that stand under one config. `claim` is the claim's UID.

    A config is for whole GPUs or for MIG devices, so one of the two is empty.
    """

    claim: str
    config: Config
    gpus: tuple[Gpu, ...] = ()
    migs: tuple[MigUnit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What will be done to some GPUs. `changes` is JSON that only who made the plan reads.

    `gpus` are those that have to be locked for it. `places` says what of them it is about, where
    that is less than all.
    """

    strategy: str
    gpus: tuple[GpuUuid, ...]
    changes: Mapping[str, object] = field(default_factory=dict)
    places: tuple[GpuPart, ...] = ()

    @property
    def parts(self) -> tuple[GpuPart, ...]:
        """What the plan is about."""
        return self.places or tuple(GpuPart(gpu=gpu) for gpu in self.gpus)


class Effect(Protocol):
    """What carries out plans. Methods that touch hardware are called with the plan's GPUs locked.

    Plans of one claim are applied and undone side by side, on threads of their own. Deadlines are
    values of the driver's monotonic clock, in seconds.
    """

    @property
    def survives_reboot(self) -> bool:
        """Whether what a plan makes lives by itself, as a daemon does.

        Then it outlives a reboot, because it is wanted by something on disk, and nobody else can
        have the GPUs before it is gone. Settings of hardware do neither.
        """
        ...

    def edits(self, plan: Plan) -> Mapping[DeviceUuid, Edits]:
        """Return what containers get for the plan, by the device they use. Touches nothing."""
        ...

    def apply(self, plan: Plan, deadline: float) -> None:
        """Bring the plan about. Repeating it is harmless.

        Raises:
            ConfigError: the card turns out not to have what the config asks for.
            DeviceError, TransientError: the hardware refused, or it takes too long.
        """
        ...

    def ensure(self, plan: Plan, deadline: float | None) -> None:
        """See to it that a plan which was applied still is, touching no hardware.

        Without a deadline nothing is waited for.

        Raises:
            DeviceError, TransientError: containers cannot be started with it now.
        """
        ...

    def undo(self, plan: Plan, deadline: float) -> None:
        """Take back whatever of the plan has been brought about. Repeating it is harmless.

        Raises:
            DeviceError, TransientError: the hardware refused; it is tried again later.
        """
        ...

    def leftovers(self) -> Mapping[str, Plan]:
        """Return, by claim UID, plans to undo all that is there for claims without a record."""
        ...


class Sharing(Effect, Protocol):
    """A sharing strategy."""

    def plan(self, groups: Sequence[Group], deadline: float) -> tuple[Plan, ...]:
        """Say what is to be done for all groups of a claim under this strategy.

        What cannot be had is refused here. Nothing is changed, but that a GPU whose abilities can
        only be tried out is set to a default; the GPUs are locked, and nobody else has them.

        Raises:
            ConfigError: these devices cannot do what a config asks.
            DeviceError, TransientError: a GPU does not say how it is set, or what it can do.
        """
        ...


def strategy_name(config: Config) -> str:
    """Return the name of the strategy a config asks for."""
    if config.sharing is None:
        return EXCLUSIVE
    return str(config.sharing.strategy)
