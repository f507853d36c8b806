"""What claims consume of devices that several claims can have, and what is left.

As in KEP-5075, what claims consume of a capacity adds up to at most its total, and a claim consumes
some of every capacity of a device: what it requests, or the default. So a device with one used-up
capacity has nothing free, unless claims need nothing of that one; and a device whose defaults are
all zero has any number of parts. Amounts are in billionths of their units. Pure.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from dra_driver.admin.api.slices import Device
from dra_driver.admin.explain.allocated import AllocatedState

NOTHING = AllocatedState()
"""The state of a new cluster."""


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


def is_closed(state: AllocatedState, device: Device) -> bool:
    """Return whether no other claim can get any of a device, whatever is left of it.

    It is allocated as a whole, or parts of it are and it is now published for one claim.
    """
    return device.id in state.whole or (device.id in state.parts and not device.shared)


def count(state: AllocatedState, device: Device) -> int:
    """Return how many claims have a device, or a part of it."""
    return len(state.parts.get(device.id, ())) + (device.id in state.whole)


def used(state: AllocatedState, device: Device) -> int:
    """Return how many fewer claims without a capacity request fit because of the existing ones.

    If any number fits, it is how many claims have the device.
    """
    if not state.has(device.id):
        return 0
    most = room(NOTHING, device)
    return count(state, device) if most is None else most - (room(state, device) or 0)


def room(state: AllocatedState, device: Device) -> int | None:
    """Return how many more claims without a capacity request can have a device; None: any number.

    Whether its counters are enough for the first of them is decided elsewhere.
    """
    if is_closed(state, device):
        return 0
    if not device.shared:
        return 1
    left = _left(state, device)
    return min(
        (left[name] // cap.default for name, cap in device.capacities.items() if cap.default),
        default=None,
    )


def capacities(
    state: AllocatedState,
    devices: Iterable[Device],
    *,
    offered: Sequence[Device],
    open_to: Sequence[Device],
) -> dict[str, CapacityUsage]:
    """Return the sum of each capacity of some devices.

    `offered` are those that could all be allocated if nothing were, `open_to` those that are free
    now. A device that a claim has as a whole counts as fully used.
    """
    can_be, can_still = ({device.id for device in each} for each in (offered, open_to))
    usages: dict[str, CapacityUsage] = {}
    for device in devices:
        taken, free = _sums(state, device), _free(state, device)
        for name, cap in device.capacities.items():
            so_far = usages.get(name, CapacityUsage())
            there = free[name] if device.id in can_still else 0
            usages[name] = CapacityUsage(
                total=so_far.total + (cap.total if device.id in can_be else 0),
                used=so_far.used + taken[name],
                free=so_far.free + there,
                most=max(so_far.most, there),
            )
    return usages


def _sums(state: AllocatedState, device: Device) -> dict[str, int]:
    """Return what claims consume of a device's capacities; all of it if one has the whole device.

    It is more than the total if the device has become smaller since.
    """
    if device.id in state.whole:
        return {name: cap.total for name, cap in device.capacities.items()}
    amounts = state.consumed(device.id)
    return {name: amounts.get(name, 0) for name in device.capacities}


def _left(state: AllocatedState, device: Device) -> dict[str, int]:
    return {
        name: max(0, device.capacities[name].total - taken)
        for name, taken in _sums(state, device).items()
    }


def _free(state: AllocatedState, device: Device) -> dict[str, int]:
    """Return how much of each capacity claims can still get, whichever they ask for.

    That is what is left, if enough of all capacities is left for one more claim.
    """
    left = _left(state, device)
    if is_closed(state, device) or any(
        left[name] < cap.least for name, cap in device.capacities.items()
    ):
        return dict.fromkeys(left, 0)
    return left
