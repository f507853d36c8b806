"""Shares: parts of a GPU, or of a MIG device that exists, each for a tenant of its own. Pure.

A share is no hardware: all shares of a device are the same device to a container, and what keeps
its tenants apart is another's concern (sharing/shares.py). Memory and SMs are rounded down, so that
shares, however they are combined, never sum to more than there is.

There are two kinds. An `EqualShare` is one of several equal ones, a device of its own in a
ResourceSlice. A `ConsumedShare` is as large as its claim asked for: the scheduler gives the one
device to several claims, each with a share id, and sums up what they consume of its capacities
(KEP-5075).
"""

from enum import StrEnum

from msgspec import Struct

from dra_driver.devices.model import GpuUuid

MIB = 1024**2
_PERCENT = 100


class ShareStrategy(StrEnum):
    """How the tenants of a divided device use it: the names of the claim configs' strategies."""

    TIME_SLICING = "TimeSlicing"
    MPS = "MPS"


class Division(Struct, frozen=True, kw_only=True, rename="camel"):
    """Into how many shares a device is divided, and how these are used.

    Attributes:
        served_as: the resource name under which shares are asked for, such as `nvidia.com/gpu`.
        combines: whether one request may have several shares, as one larger share.
        free_compute: whether each share may use all SMs that others leave idle under MPS.
        equal_memory: whether each share has its part of the memory, where time-slicing alone would
            not divide it.
        together: the GPUs of which one container may have shares at a time, sorted, where that
            takes one server for all of them; these are given out in no other way.
    """

    count: int
    strategy: ShareStrategy
    served_as: str
    combines: bool
    free_compute: bool = False
    equal_memory: bool = False
    together: tuple[GpuUuid, ...] = ()


class EqualShare(Struct, frozen=True, kw_only=True, tag_field="kind", tag="equal"):
    """One of several equal shares of a device. `index` counts from 0."""

    index: int
    division: Division

    @property
    def strategy(self) -> ShareStrategy:
        """How its tenant uses the device."""
        return self.division.strategy

    @property
    def label(self) -> str:
        """What tells it from the other shares of the device."""
        return str(self.index)

    def is_beside(self, other: "Share") -> bool:
        """Tell whether two claims can have both: other shares of the same division."""
        return (
            isinstance(other, EqualShare)
            and self.division == other.division
            and self.index != other.index
        )


class ConsumedShare(
    Struct, frozen=True, kw_only=True, rename="camel", tag_field="kind", tag="consumed"
):
    """What a claim consumes of a device that several claims can be given.

    Attributes:
        share_id: tells it from the others of the device (resource.k8s.io/v1 shareID).
        memory_mib: memory in MiB; 0 is none in particular, and no limit.
        cores: percent of the SMs; 0 is none in particular, and no limit.
        shares: of the shares that a device has where the driver counts them; 1 elsewhere.
    """

    share_id: str
    strategy: ShareStrategy
    memory_mib: int = 0
    cores: int = 0
    shares: int = 1

    @property
    def division(self) -> None:
        """No division: the device is as the scheduler gives it out."""
        return

    @property
    def label(self) -> str:
        """What tells it from the other shares of the device."""
        return self.share_id

    def is_beside(self, other: "Share") -> bool:
        """Tell whether two claims can have both: another share id, and the same strategy.

        That they do not sum above the device is the scheduler's care.
        """
        return (
            isinstance(other, ConsumedShare)
            and self.strategy is other.strategy
            and self.share_id != other.share_id
        )


Share = EqualShare | ConsumedShare
"""A share of a device, of either kind."""


def memory_mib(total: int, taken: int, count: int) -> int:
    """Return `taken` of `count` shares of `total` bytes, in whole MiB rounded down per share."""
    return total // MIB // count * taken


def percentage(taken: int, count: int) -> int:
    """Return the percentage of SMs of so many of `count` shares, rounded down; 1 at the least."""
    return max(1, _PERCENT * taken // count)
