"""Which devices of a node are divided into shares, and the order in which shares are allocated.

In: what the share config makes of the node (shares/divide.py), with the divisions in force
(claims/state/divisions.py) in place of the wanted ones. Out: a `ShareOffer`. Pure.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum

from msgspec.structs import replace

from dra_driver.devices.device import Base, Whole
from dra_driver.devices.model import GpuUuid, Inventory
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.shares.layout import ShareLayout
from dra_driver.slices.consumable import NO_CONSUMABLES, Consumable
from dra_driver.slices.offer.mig import KubernetesVersion, has_cheap_counters, named


class WholeBesideShares(StrEnum):
    """Whether a device that is divided into shares is also offered as a whole."""

    ALWAYS = "always"
    """It is also offered as a whole, and counters keep the two apart."""

    NEVER = "never"
    """Only its shares are offered, without counters, as the device plugin does."""

    AUTO = "auto"
    """ALWAYS if counters cost the scheduler little, from Kubernetes 1.37 on; otherwise NEVER."""

    def why_alone(self, version: Callable[[], KubernetesVersion | None]) -> str | None:
        """Return why only shares are offered; None if the whole device is offered, too."""
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


class ShareOffer(ShareLayout, frozen=True, kw_only=True):
    """What a node offers as shares.

    Attributes:
        consumable: how several claims can consume a device that is not divided.
        waiting: the devices that are to be divided differently once no claim has any of them. Their
            shares are allocated last.
        alone: why a divided device is not also offered as a whole; None if it is.
    """

    consumable: Consumable = NO_CONSUMABLES
    waiting: frozenset[Base] = frozenset()
    alone: str | None = None

    def is_packed(self, division: Division) -> bool:
        """Tell whether all shares of one device are allocated before those of the next.

        They are if MPS serves requests for several shares, which have to be of one device.
        """
        return self.packed or (division.combines and division.strategy is ShareStrategy.MPS)

    def refusing_all(self, inventory: Inventory, reason: str) -> "ShareOffer":
        """Return the same offer without any GPU of an inventory."""
        return replace(self, refused={Whole(gpu=gpu.uuid): reason for gpu in inventory.gpus})

    def refusing(self, reasons: Mapping[GpuUuid, str]) -> "ShareOffer":
        """Return the same offer without some GPUs, each left out for a reason."""
        refused = {Whole(gpu=gpu): reason for gpu, reason in reasons.items()}
        return replace(self, refused={**self.refused, **refused}) if refused else self


NO_SHARES = ShareOffer()
