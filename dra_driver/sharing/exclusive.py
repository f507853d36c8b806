"""Exclusive: the claim's containers have the GPUs for themselves. Nothing on the GPU is changed.

The scheduler gives a device to one claim only, and claims/ checks it again, so there is nothing to
plan, nothing to set and nothing to take back.
"""

from collections.abc import Callable, Mapping, Sequence

from dra_driver.cdi.model import Edits
from dra_driver.sharing.base import Description, DeviceKey, Group, SharingPlan


class Exclusive:
    """The strategy of configs without `sharing`."""

    survives_reboot = False

    def plan(self, groups: Sequence[Group], deadline: float) -> tuple[SharingPlan, ...]:  # noqa: ARG002
        """Return no plan."""
        return ()

    def edits(self, plan: SharingPlan) -> Mapping[DeviceKey, Edits]:  # noqa: ARG002
        """Return no edits: the GPU's own are enough."""
        return {}

    @staticmethod
    def describe(plan: SharingPlan, device: DeviceKey) -> Description:  # noqa: ARG004
        """Return that nothing is set."""
        return Description()

    def apply(self, plan: SharingPlan, deadline: float) -> None:
        """Do nothing."""

    def ensure(self, plan: SharingPlan) -> None:
        """Do nothing."""

    def wait_ready(self, plan: SharingPlan, deadline: float, given_up: Callable[[], bool]) -> None:
        """Do nothing: there is no daemon."""

    def let_go(self, plan: SharingPlan, deadline: float) -> None:
        """Do nothing: there is no daemon."""

    def undo(self, plan: SharingPlan, deadline: float) -> None:
        """Do nothing."""

    def claims(self) -> frozenset[str]:
        """Return none."""
        return frozenset()

    def sweep(self, claim: str, deadline: float) -> None:
        """Do nothing."""
