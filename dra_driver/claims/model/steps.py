"""All that is done for a claim, as one ordered list of steps. Pure.

The steps that make devices exist come first, then those that share them. They are recorded and done
in this order, and undone in reverse (claims/prepare/steps.py). Code that reads a step first checks
its type.
"""

from typing import ClassVar

from dra_driver.claims.model.claim import ClaimUid
from dra_driver.devices.device import Mig
from dra_driver.devices.model import GpuUuid
from dra_driver.sharing.steps import SharingStep, Step

MIG = "MIG"
"""The name of steps that make devices exist, in logs, metrics and status."""


class MakeMigDevices(Step, frozen=True, kw_only=True, tag="makeMigDevices"):
    """Makes MIG devices on one GPU. `claim` is the UID of the claim that they are made for."""

    name: ClassVar[str] = MIG
    excludes: ClassVar[bool] = True

    claim: ClaimUid

    @property
    def gpu(self) -> GpuUuid:
        """The GPU on which they are made."""
        return self.devices[0].gpu

    @property
    def places(self) -> tuple[Mig, ...]:
        """The places where they are made."""
        return tuple(device.base for device in self.devices if isinstance(device.base, Mig))


class TurnMigModeOff(Step, frozen=True, kw_only=True, tag="turnMigModeOff"):
    """Turns off MIG mode of a GPU, so that it can be used as a whole.

    `restore` says that the mode was on before, and not turned on by this driver: undo turns it on.
    """

    name: ClassVar[str] = MIG

    restore: bool

    @property
    def gpu(self) -> GpuUuid:
        """The GPU whose mode is turned off."""
        return self.devices[0].gpu


MigStep = MakeMigDevices | TurnMigModeOff
"""A step that makes devices exist."""

ClaimStep = MigStep | SharingStep
"""Any step that is done for a claim."""
