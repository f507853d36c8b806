"""What a node offers of shares: which devices are divided, and in what order shares are given out.

In: the divisions that hold (claims/state/divisions.py), what could not be divided as the share
config asks, and the setting `--share-placement`. Out: a `ShareOffer`. Pure.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.devices.device import Base, Whole
from dra_driver.devices.model import GpuUuid, Inventory
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.slices.consumable import NO_CONSUMABLES, Consumable
from dra_driver.slices.offer.mig import KubernetesVersion, has_cheap_counters, named


class WholeBesideShares(StrEnum):
    """Whether a device that is divided into shares is offered as a whole, too."""

    ALWAYS = "always"
    """It is, and counters keep the two apart."""

    NEVER = "never"
    """Its shares are offered alone, without counters, as the device plugin does."""

    AUTO = "auto"
    """It is where counters cost the scheduler little: from Kubernetes 1.37 on."""

    def why_alone(self, version: Callable[[], KubernetesVersion | None]) -> str | None:
        """Return why shares are offered alone; None if they are not."""
        match self:
            case WholeBesideShares.ALWAYS:
                return None
            case WholeBesideShares.NEVER:
                return "--whole-gpus-beside-shares is never"
            case WholeBesideShares.AUTO:
                kubernetes = version()
                if has_cheap_counters(kubernetes):
                    return None
                return (
                    f"on {named(kubernetes)} counters, which would keep the whole GPU from its"
                    " shares, slow the scheduler down (--whole-gpus-beside-shares always offers"
                    " both)"
                )


class SharePlacement(StrEnum):
    """On which device the next share is given out."""

    SPREAD = "spread"
    """On another one than the share before, as the device plugin does."""

    PACK = "pack"
    """On the same one, until it is full, so that others stay free."""

    AUTO = "auto"
    """Packed where a request may have several shares and MPS serves them, else spread."""


class ShareOffer(Struct, frozen=True, kw_only=True):
    """What is offered of shares.

    Attributes:
        divisions: the devices that are divided, and how.
        consumable: what several claims can have of a device that is not divided.
        placement: on which device the next share is given out.
        refused: why a device is not divided as the share config asks; it is not offered at all, for
            who asks for a share is not to get all of it.
        serving: the extended resource that a device serves, if not the one of its kind.
        alone: why a divided device is offered as its shares and not as a whole; None if it is.
    """

    divisions: Mapping[Base, Division] = field(default_factory=dict)
    consumable: Consumable = NO_CONSUMABLES
    placement: SharePlacement = SharePlacement.AUTO
    refused: Mapping[Base, str] = field(default_factory=dict)
    serving: Mapping[Base, str] = field(default_factory=dict)
    alone: str | None = None

    def is_packed(self, division: Division) -> bool:
        """Tell whether the shares of one device are given out before those of the next."""
        match self.placement:
            case SharePlacement.AUTO:
                return division.combines and division.strategy is ShareStrategy.MPS
            case SharePlacement.SPREAD | SharePlacement.PACK:
                return self.placement is SharePlacement.PACK

    def refusing_all(self, inventory: Inventory, reason: str) -> "ShareOffer":
        """Return it with no GPU of an inventory offered."""
        return replace(self, refused={Whole(gpu=gpu.uuid): reason for gpu in inventory.gpus})

    def refusing(self, reasons: Mapping[GpuUuid, str]) -> "ShareOffer":
        """Return it with some GPUs not offered, each for its reason."""
        refused = {Whole(gpu=gpu): reason for gpu, reason in reasons.items()}
        return replace(self, refused={**self.refused, **refused}) if refused else self


NO_SHARES = ShareOffer()
