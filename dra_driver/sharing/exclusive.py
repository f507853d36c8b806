"""Exclusive: the claim's containers have the GPUs for themselves. Nothing on the GPU is changed.

The scheduler gives a device to one claim only, and the overlap guard in claims/ checks it again, so
there is nothing to set and nothing to take back.
"""

from dra_driver.cdi.model import Edits
from dra_driver.sharing.base import EXCLUSIVE, Group, Plan


class Exclusive:
    """The strategy of configs without `sharing`."""

    def plan(self, group: Group) -> Plan:
        """Return a plan without changes."""
        return Plan(strategy=EXCLUSIVE, gpus=tuple(gpu.uuid for gpu in group.gpus))

    def apply(self, plan: Plan) -> Edits:  # noqa: ARG002 (a Sharing)
        """Return no edits: the GPU's own are enough."""
        return Edits()

    def undo(self, plan: Plan) -> None:
        """Do nothing: there is nothing to take back."""
