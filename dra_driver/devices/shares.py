"""Shares: parts of a GPU, or of a MIG device that exists, each for a tenant of its own. Pure.

A share is no hardware: all shares of a device are the same device to a container, and what keeps
its tenants apart is another's concern (sharing/shares.py). Memory and SMs are rounded down, so that
shares, however they are combined, never sum to more than there is.

There are two kinds. A `Share` is one of several equal ones, a device of its own in a ResourceSlice.
A `ConsumableShare` is as large as its claim asked for: the scheduler gives the one device to
several claims, each with a share id, and sums up what they consume of its capacities (KEP-5075).
"""

from enum import StrEnum

from msgspec import Struct

from dra_driver.devices.model import Gpu, GpuUuid, MigDevice, Partition

Divisible = Gpu | MigDevice | Partition
"""What can be divided. Of MIG devices those that exist; a partition stands for one by its place."""

MIB = 1024**2
_PERCENT = 100


class ShareStrategy(StrEnum):
    """How the tenants of a divided device use it: the names of the claim configs' strategies."""

    TIME_SLICING = "TimeSlicing"
    MPS = "MPS"


class Division(Struct, frozen=True, kw_only=True):
    """Into how many shares a device is divided, and how these are used.

    Attributes:
        served_as: the resource name under which shares are asked for, such as `nvidia.com/gpu`.
        combines: whether one request may have several shares, as one larger share.
        free_compute: whether each share may use all SMs that others leave idle under MPS.
        together: the GPUs of which one container may have shares at a time, sorted, where that
            takes one server for all of them; these are given out in no other way.
    """

    count: int
    strategy: ShareStrategy
    served_as: str
    combines: bool
    free_compute: bool = False
    together: tuple[GpuUuid, ...] = ()


class Share(Struct, frozen=True, kw_only=True):
    """One share of a device. `index` counts from 0."""

    of: Divisible
    index: int
    division: Division

    @property
    def slot(self) -> "ShareSlot":
        """Which share it is."""
        return ShareSlot(index=self.index, division=self.division)


class ShareSlot(Struct, frozen=True, kw_only=True):
    """Which share of a device, whatever device that is."""

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

    def is_beside(self, other: "Slot") -> bool:
        """Tell whether two claims can have both: other shares of the same division."""
        return (
            isinstance(other, ShareSlot)
            and self.division == other.division
            and self.index != other.index
        )


class ConsumableSlot(Struct, frozen=True, kw_only=True):
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

    def is_beside(self, other: "Slot") -> bool:
        """Tell whether two claims can have both: another share id, and the same strategy.

        That they do not sum above the device is the scheduler's care.
        """
        return (
            isinstance(other, ConsumableSlot)
            and self.strategy is other.strategy
            and self.share_id != other.share_id
        )


Slot = ShareSlot | ConsumableSlot
"""Which share of a device, of either kind."""


class ConsumableShare(Struct, frozen=True, kw_only=True):
    """What a claim consumes of a device that other claims can be given too."""

    of: Divisible
    slot: ConsumableSlot


def shares(device: Divisible, division: Division) -> tuple[Share, ...]:
    """Return all shares of a device."""
    return tuple(
        Share(of=device, index=index, division=division) for index in range(division.count)
    )


def memory_of(device: Divisible) -> int | None:
    """Return the memory that tenants of a device can have together, in bytes.

    None for a card that does not say. What the GPU driver reserves of a GPU for itself is left
    out, so that the last tenant gets what it was promised; a MIG device has what its profile says.
    """
    if not isinstance(device, Gpu):
        return device.profile.memory_bytes
    if device.memory_bytes is None:
        return None
    return device.memory_bytes - device.memory_reserved_bytes


def memory_mib(total: int, taken: int, count: int) -> int:
    """Return `taken` of `count` shares of `total` bytes, in whole MiB rounded down per share."""
    return total // MIB // count * taken


def percentage(taken: int, count: int) -> int:
    """Return the percentage of SMs of so many of `count` shares, rounded down; 1 at the least."""
    return max(1, _PERCENT * taken // count)
