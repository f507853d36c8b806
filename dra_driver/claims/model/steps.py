"""All that is done for a claim, as one ordered list of steps. Pure.

First comes what makes devices exist, then what shares them. In the same form they stand in the
claim's record, are done, and are undone from behind (claims/prepare/steps.py). Nobody reads a step
but by its type.
"""

from typing import ClassVar

from dra_driver.claims.model.claim import ClaimUid
from dra_driver.devices.device import Mig
from dra_driver.devices.model import GpuUuid
from dra_driver.sharing.steps import SharingStep, Step

MIG = "MIG"
"""What steps that make devices exist are called in logs, metrics and status."""


class MakeMigDevices(Step, frozen=True, kw_only=True, tag="makeMigDevices"):
    """MIG devices are made on one GPU. `claim` is the UID of the claim that they are made for."""

    name: ClassVar[str] = MIG
    excludes: ClassVar[bool] = True

    claim: ClaimUid

    @property
    def gpu(self) -> GpuUuid:
        """The GPU."""
        return self.devices[0].gpu

    @property
    def places(self) -> tuple[Mig, ...]:
        """Where they are made."""
        return tuple(device.base for device in self.devices if isinstance(device.base, Mig))


class TurnMigModeOff(Step, frozen=True, kw_only=True, tag="turnMigModeOff"):
    """MIG mode of a GPU is turned off, so that it can be used as a whole.

    `restore` says that it was on before, and not turned on by us: it is turned on again.
    """

    name: ClassVar[str] = MIG

    restore: bool

    @property
    def gpu(self) -> GpuUuid:
        """The GPU."""
        return self.devices[0].gpu


MigStep = MakeMigDevices | TurnMigModeOff
"""What makes devices exist."""

ClaimStep = MigStep | SharingStep
"""Anything that is done for a claim."""
