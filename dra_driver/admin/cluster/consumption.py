"""What claims consume of devices that several claims can have, and what is left.

As in KEP-5075, what claims consume of a capacity adds up to at most its total, and a claim consumes
something of every capacity of a device, by default the default. So a device with one used-up
capacity has nothing free, unless claims need nothing of that one; and a device whose defaults are
all zero has any number of parts. Amounts are in billionths of their units. Pure.
"""

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from dra_driver.admin.api.allocations import Allocation
from dra_driver.admin.cluster.pools import Device


class CapacityUsage(Struct, frozen=True, kw_only=True):
    """A capacity of some devices, in billionths of its unit.

    Attributes:
        total: what claims can have together if nothing is allocated, including tainted devices.
        free: what they can still have.
        most: what one claim can still have of one of the devices.
    """

    total: int = 0
    used: int = 0
    free: int = 0
    most: int = 0


class Consumed(Struct, frozen=True, kw_only=True):
    """What the claims of a pool have.

    Attributes:
        whole: the devices that claims have as a whole.
        closed: those of which nobody gets anything any more: they are allocated as a whole, or
            parts of them are allocated and they are now published for one claim.
        parts: how many parts claims have, by device.
        amounts: what these consume, by device and capacity.
    """

    whole: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()
    parts: Mapping[str, int] = {}
    amounts: Mapping[str, Mapping[str, int]] = {}

    @classmethod
    def by(cls, allocations: Iterable[tuple[Device, Allocation]]) -> "Consumed":
        """Return what these allocations consume."""
        whole: set[str] = set()
        closed: set[str] = set()
        parts: dict[str, int] = {}
        amounts: dict[str, dict[str, int]] = {}
        for device, allocation in allocations:
            if allocation.share_id is None:
                whole.add(device.name)
                closed.add(device.name)
                continue
            if not device.allows_multiple:
                closed.add(device.name)
            parts[device.name] = parts.get(device.name, 0) + 1
            sums = amounts.setdefault(device.name, {})
            for name in allocation.consumed.keys() & device.capacities.keys():
                sums[name] = sums.get(name, 0) + allocation.consumed[name]
        return cls(whole=frozenset(whole), closed=frozenset(closed), parts=parts, amounts=amounts)

    def is_taken(self, device: Device) -> bool:
        """Tell whether a claim has the device or a part of it: its counters are used up."""
        return device.name in self.whole or device.name in self.parts

    def is_closed(self, device: Device) -> bool:
        """Tell whether nobody gets anything of the device, whatever is left."""
        return device.name in self.closed

    def count(self, device: Device) -> int:
        """Return how many claims have the device, or a part of it."""
        return self.parts.get(device.name, 0) + (device.name in self.whole)

    def used(self, device: Device) -> int:
        """Return by how many the existing claims reduce those without a capacity request that fit.

        If any number fits, it is how many claims have the device.
        """
        if not self.is_taken(device):
            return 0
        room = NOTHING_CONSUMED.room(device)
        return self.count(device) if room is None else room - (self.room(device) or 0)

    def sums(self, device: Device) -> dict[str, int]:
        """Return what claims have of a device's capacities; all of it if one has the whole device.

        It is more than the total if the device has become smaller since.
        """
        if device.name in self.whole:
            return {name: cap.total for name, cap in device.capacities.items()}
        amounts = self.amounts.get(device.name, {})
        return {name: amounts.get(name, 0) for name in device.capacities}

    def left(self, device: Device) -> dict[str, int]:
        """Return what is left of a device's capacities."""
        return {
            name: max(0, device.capacities[name].total - taken)
            for name, taken in self.sums(device).items()
        }

    def room(self, device: Device) -> int | None:
        """Return how many more claims without a capacity request can have the device.

        Whether its counters are enough for the first of them is decided elsewhere. None: any
        number.
        """
        if self.is_closed(device):
            return 0
        if not device.allows_multiple:
            return 1
        left = self.left(device)
        return min(
            (left[name] // cap.default for name, cap in device.capacities.items() if cap.default),
            default=None,
        )

    def free(self, device: Device) -> dict[str, int]:
        """Return what claims can still have of each capacity, whichever they ask for.

        That is what is left, if enough of all the others is left for one more claim.
        """
        left = self.left(device)
        if self.is_closed(device) or any(
            left[name] < cap.least for name, cap in device.capacities.items()
        ):
            return dict.fromkeys(left, 0)
        return left

    def capacities(
        self, devices: Iterable[Device], *, offered: Collection[str], open_to: Collection[str]
    ) -> dict[str, CapacityUsage]:
        """Return the sum of each capacity of some devices.

        `offered` are those that could all be allocated if nothing were, `open_to` those that are
        free now. A device that a claim has as a whole counts as fully used.
        """
        usages: dict[str, CapacityUsage] = {}
        for device in devices:
            taken, free = self.sums(device), self.free(device)
            for name, cap in device.capacities.items():
                so_far = usages.get(name, CapacityUsage())
                there = free[name] if device.name in open_to else 0
                usages[name] = CapacityUsage(
                    total=so_far.total + (cap.total if device.name in offered else 0),
                    used=so_far.used + taken[name],
                    free=so_far.free + there,
                    most=max(so_far.most, there),
                )
        return usages


NOTHING_CONSUMED = Consumed()
