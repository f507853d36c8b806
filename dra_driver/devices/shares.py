"""Shares: parts of a GPU, or of a MIG device that exists, each for a tenant of its own. Pure.

A share is not hardware: containers see the same device whichever share of it they have, and
sharing/shares.py keeps the tenants apart. Memory and SMs are rounded down, so that shares, however
they are combined, never add up to more than there is.

There are two kinds. An `EqualShare` is one of several equal ones, a device of its own in a
ResourceSlice. A `ConsumedShare` is as large as its claim asked for: the scheduler gives one device
to several claims, each with a share id, and adds up what they consume of its capacities (KEP-5075).
"""

from enum import StrEnum

from msgspec import Struct

from dra_driver.devices.names import MPS_SHARE, SINGLE_SHARE

MIB = 1024**2
_PERCENT = 100

MPS_SINCE, LIMITS_SINCE = (3, 5), (7, 0)
"""Oldest compute capability with MPS, and the one since which it limits each client (Volta)."""


class ShareStrategy(StrEnum):
    """How the tenants of a divided device use it: the names of the claim configs' strategies."""

    TIME_SLICING = "TimeSlicing"
    MPS = "MPS"


class Division(Struct, frozen=True, kw_only=True, rename="camel"):
    """Into how many shares a device is divided, and how these are used.

    Attributes:
        served_as: the resource name under which shares are asked for, such as `nvidia.com/gpu`.
        combines: whether one request may have several shares, as one larger share; under MPS, all
            of them of this device.
        free_compute: whether each share may use all SMs that others leave idle under MPS.
        equal_memory: whether each share is limited to its part of the memory, which time-slicing
            alone does not divide.
    """

    count: int
    strategy: ShareStrategy
    served_as: str
    combines: bool
    free_compute: bool = False
    equal_memory: bool = False

    @property
    def has_memory(self) -> bool:
        """Whether it is known how much memory a share has."""
        return self.equal_memory or self.strategy is ShareStrategy.MPS

    @property
    def kind(self) -> str:
        """What a share of it is called in device names."""
        if not self.combines:
            return SINGLE_SHARE
        return MPS_SHARE if self.strategy is ShareStrategy.MPS else "share"


class EqualShare(Struct, frozen=True, kw_only=True, tag_field="kind", tag="equal"):
    """One of several equal shares of a device. `index` counts from 0."""

    index: int
    division: Division

    @property
    def strategy(self) -> ShareStrategy:
        """How its tenant uses the device."""
        return self.division.strategy

    @property
    def has_memory(self) -> bool:
        """Whether it is known how much memory it has."""
        return self.division.has_memory

    @property
    def label(self) -> str:
        """The text that distinguishes it from the other shares of the device."""
        return str(self.index)

    def is_beside(self, other: "Share") -> bool:
        """Tell whether two claims can have both: different shares of the same division."""
        return (
            isinstance(other, EqualShare)
            and self.division == other.division
            and self.index != other.index
        )


class ConsumedShare(
    Struct, frozen=True, kw_only=True, rename="camel", tag_field="kind", tag="consumed"
):
    """What a claim consumes of a device that several claims can have.

    Attributes:
        share_id: distinguishes it from the device's other shares (resource.k8s.io/v1 shareID).
        memory_mib: memory in MiB; 0 means that none is requested and there is no limit.
        cores: percentage of the SMs; 0 means that none is requested and there is no limit.
        shares: how many of the device's shares it takes, if the driver counts them; otherwise 1.
    """

    share_id: str
    strategy: ShareStrategy
    memory_mib: int = 0
    cores: int = 0
    shares: int = 1

    @property
    def division(self) -> None:
        """Always None: the scheduler decides how the device is divided."""
        return

    @property
    def has_memory(self) -> bool:
        """Whether its claim asked for memory."""
        return self.memory_mib > 0

    @property
    def label(self) -> str:
        """The text that distinguishes it from the other shares of the device."""
        return self.share_id

    def is_beside(self, other: "Share") -> bool:
        """Tell whether two claims can have both: different share ids, and the same strategy.

        The scheduler ensures that together they do not consume more than the device has.
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
    """Return the percentage of SMs for `taken` of `count` shares, rounded down; at least 1."""
    return max(1, _PERCENT * taken // count)
