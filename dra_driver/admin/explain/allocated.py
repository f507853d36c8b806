"""What is already allocated, as the scheduler counts it, and to which claims.

A device that was allocated for admin access counts as free (KEP-5018); an allocation with a share
id is of a part of a device (KEP-5075). Pure.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from dra_driver.admin.api.allocations import Allocation, allocations_in
from dra_driver.admin.api.slices import DeviceId
from dra_driver.host import words
from dra_driver.kube.fields import Object

_GROUP = "podgroups/"
_NAMED = 3
"""How many claims are named; the others are counted."""


class AllocatedState(Struct, frozen=True, kw_only=True):
    """The allocations of whole devices and of parts of devices."""

    whole: Mapping[DeviceId, tuple[Allocation, ...]] = {}
    parts: Mapping[DeviceId, tuple[Allocation, ...]] = {}

    @classmethod
    def of(cls, claims: Iterable[Object]) -> "AllocatedState":
        """Return the allocations of these claims."""
        return cls.by(each for claim in claims for each in allocations_in(claim))

    @classmethod
    def by(cls, allocations: Iterable[Allocation]) -> "AllocatedState":
        """Return these allocations by device."""
        whole: dict[DeviceId, tuple[Allocation, ...]] = {}
        parts: dict[DeviceId, tuple[Allocation, ...]] = {}
        for allocation in allocations:
            held = whole if allocation.share_id is None else parts
            held[allocation.id] = (*held.get(allocation.id, ()), allocation)
        return cls(whole=whole, parts=parts)

    def has(self, device: DeviceId) -> bool:
        """Return whether a claim has the device or a part of it, and so takes its counters."""
        return device in self.whole or device in self.parts

    def holders(self, device: DeviceId) -> tuple[Allocation, ...]:
        """Return the allocations of the device and of its parts."""
        return (*self.whole.get(device, ()), *self.parts.get(device, ()))

    def consumed(self, device: DeviceId) -> dict[str, int]:
        """Return what the parts of a device consume of its capacities."""
        amounts: dict[str, int] = {}
        for allocation in self.parts.get(device, ()):
            for name, amount in allocation.consumed.items():
                amounts[name] = amounts.get(name, 0) + amount
        return amounts


def named(holders: Iterable[Allocation]) -> str:
    """Return claims and their users in words: `claim team/a (pod train)`."""
    claims = list(
        dict.fromkeys(f"claim {holder.claim} ({users_text(holder.users)})" for holder in holders)
    )
    if len(claims) > _NAMED:
        claims[_NAMED:] = [f"and {words.count(len(claims) - _NAMED, 'more claim')}"]
    return ", ".join(claims)


def users_text(users: tuple[str, ...]) -> str:
    """Return for whom a claim is reserved, in words."""
    if not users:
        return "not in use"
    groups = tuple(user for user in users if user.startswith(_GROUP))
    pods = tuple(user for user in users if user not in groups)
    names = tuple(group.removeprefix(_GROUP) for group in groups)
    return " and ".join(filter(None, (_listed("pod", pods), _listed("PodGroup", names))))


def _listed(noun: str, names: tuple[str, ...]) -> str:
    if not names:
        return ""
    plural = "s" if len(names) > 1 else ""
    return f"{noun}{plural} {words.named(names, _NAMED)}"
