"""What a sharing strategy is: from configs to plans, from a plan to container edits and back.

A strategy first plans, which changes nothing, and says in its plans everything it needs to apply
and to undo them. A plan is plain JSON, so that it can be written down before hardware is touched
and carried out backwards by another process after a crash. A strategy makes as many plans for a
claim as there are parts that can be undone each by itself. What needs no change has no plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dra_driver.cdi.model import Edits
from dra_driver.devices.model import Gpu, GpuUuid
from resource_nvidia_com.decode import Config
from resource_nvidia_com.v1beta1.vfio import VfioDeviceConfig

EXCLUSIVE = "Exclusive"
"""Name of the strategy for configs that name none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The GPUs of one claim that stand under one config. `claim` is the claim's UID."""

    claim: str
    gpus: tuple[Gpu, ...]
    config: Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a strategy will do to some GPUs. `changes` is JSON that only the strategy reads."""

    strategy: str
    gpus: tuple[GpuUuid, ...]
    changes: Mapping[str, object] = field(default_factory=dict)


class Sharing(Protocol):
    """A sharing strategy. Methods that touch hardware are called with the plan's GPUs locked.

    Plans of one claim are applied and undone side by side, on threads of their own. Deadlines are
    values of the driver's monotonic clock, in seconds.
    """

    @property
    def lives_on(self) -> bool:
        """Whether what a plan makes lives by itself, as a daemon does.

        Then it outlives a reboot, because it is wanted by something on disk, and nobody else can
        have the GPUs before it is gone. Settings of hardware do neither.
        """
        ...

    def plan(self, groups: Sequence[Group]) -> tuple[Plan, ...]:
        """Say what is to be done for all groups of a claim under this strategy, changing nothing.

        Raises:
            ConfigError: these GPUs cannot do what a config asks.
            DeviceError, TransientError: a GPU does not say how it is set.
        """
        ...

    def edits(self, plan: Plan) -> Mapping[GpuUuid, Edits]:
        """Return what containers get for the plan, by the GPU they use. Touches nothing."""
        ...

    def apply(self, plan: Plan, deadline: float) -> None:
        """Bring the plan about. Repeating it is harmless.

        Raises:
            ConfigError: the card turns out not to have what the config asks for.
            DeviceError, TransientError: the hardware refused, or it takes too long.
        """
        ...

    def uphold(self, plan: Plan, deadline: float | None) -> None:
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


def strategy_name(config: Config) -> str:
    """Return the name of the strategy a config asks for."""
    if isinstance(config, VfioDeviceConfig) or config.sharing is None:
        return EXCLUSIVE
    return str(config.sharing.strategy)
