"""Exclusive: the claim's containers have the GPUs for themselves. Nothing on the GPU is changed.

The scheduler gives a device to one claim only, and the overlap guard in claims/ checks it again, so
there is nothing to plan, nothing to set and nothing to take back.
"""

from collections.abc import Mapping, Sequence

from dra_driver.cdi.model import Edits
from dra_driver.sharing.base import DeviceUuid, Group, Plan


class Exclusive:
    """The strategy of configs without `sharing`."""

    survives_reboot = False

    def plan(self, groups: Sequence[Group], deadline: float) -> tuple[Plan, ...]:  # noqa: ARG002
        """Return no plan."""
        return ()

    def edits(self, plan: Plan) -> Mapping[DeviceUuid, Edits]:  # noqa: ARG002
        """Return no edits: the GPU's own are enough."""
        return {}

    def apply(self, plan: Plan, deadline: float) -> None:
        """Do nothing."""

    def ensure(self, plan: Plan, deadline: float | None) -> None:
        """Do nothing."""

    def undo(self, plan: Plan, deadline: float) -> None:
        """Do nothing."""

    def leftovers(self) -> Mapping[str, Plan]:
        """Return none."""
        return {}
