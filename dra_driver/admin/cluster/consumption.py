"""What claims consume of devices that several of them can have, and what is left.

Rules (KEP-5075): what claims consume of a capacity sums up to its total at most; a claim consumes
something of every capacity of a device, if it does not ask for it the default. So a device of which
one capacity is used up has nothing free, unless claims can do without that one; and of a device
whose defaults are all zero there is no end of parts. Amounts are in billionths of their units.
Pure.
"""

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from dra_driver.admin.api.allocations import Allocation
from dra_driver.admin.cluster.pools import Device


class CapacityUsage(Struct, frozen=True, kw_only=True):
    """A capacity of some devices, in billionths of its unit.

    Attributes:
        total: what claims can have together with nothing allocated, tainted devices among them.
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
        whole: the devices that claims have, and not only parts of them.
        closed: those of which nobody gets anything any more: they are had as a whole, or parts of
            them are had and they are published for one claim by now.
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
        """Tell whether nobody gets anything of the device, whatever is left of it."""
        return device.name in self.closed

    def count(self, device: Device) -> int:
        """Return how often claims have the device, or a part of it."""
        return self.parts.get(device.name, 0) + (device.name in self.whole)

    def used(self, device: Device) -> int:
        """Return how many fewer claims can have it that ask for no capacity, for those that do.

        Where any number can, it is how many have it.
        """
        if not self.is_taken(device):
            return 0
        room = NOTHING_CONSUMED.room(device)
        return self.count(device) if room is None else room - (self.room(device) or 0)

    def sums(self, device: Device) -> dict[str, int]:
        """Return what claims have of a device's capacities; all of it if one has it as a whole.

        It is more than there is where the device has come to have less since.
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
        """Return how many more claims can have the device that ask for no capacity.

        Whether its counters allow for the first of them is another's concern. None: any number.
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

        That is what is left, where there is enough of all the others for one claim more.
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
        """Return each capacity of some devices together.

        `offered` are those that could all be given out if nothing were allocated, `open_to` those
        that are free now. A device that a claim has as a whole counts as used with all it has.
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
