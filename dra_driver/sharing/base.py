"""What a sharing strategy is: from a config to a plan, from a plan to container edits and back.

A strategy first plans, which changes nothing, and says in the plan everything it needs to apply and
to undo it. A plan is plain JSON, so that it can be written down before hardware is touched and
carried out backwards by another process after a crash. A plan without `changes` touches nothing.
"""

from collections.abc import Mapping
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
    """What a strategy will do. `changes` is JSON that only the strategy reads; empty = nothing."""

    strategy: str
    gpus: tuple[GpuUuid, ...]
    changes: Mapping[str, object] = field(default_factory=dict)


class Sharing(Protocol):
    """A sharing strategy. Its methods are called with the locks of the plan's GPUs held."""

    def plan(self, group: Group) -> Plan:
        """Say what is to be done, touching nothing.

        Raises:
            ConfigError: these GPUs cannot do what the config asks.
        """
        ...

    def apply(self, plan: Plan) -> Edits:
        """Bring the plan about and return what containers get for it. Repeating it is harmless.

        Raises:
            DeviceError, TransientError: the hardware refused.
        """
        ...

    def undo(self, plan: Plan) -> None:
        """Take back whatever of the plan has been brought about. Repeating it is harmless.

        Raises:
            DeviceError, TransientError: the hardware refused; it is tried again later.
        """
        ...


def strategy_name(config: Config) -> str:
    """Return the name of the strategy a config asks for."""
    if isinstance(config, VfioDeviceConfig) or config.sharing is None:
        return EXCLUSIVE
    return str(config.sharing.strategy)
