"""How the devices of this node are divided into shares now: what claims have, else what is wanted.

In: the divisions that the node's share config asks for (shares/), those that shares were offered by
last (claims/state/redivision.py), and the records of claims. Out: the division that holds for each
device. A device of which somebody has a share, or has been allocated one, stays divided as it is
until nobody has, also over a reboot; a new config is applied to it then, and to all others at once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from dra_driver.claims.model.devices import DeviceRecord, RecordedShare
from dra_driver.claims.state.holdings import Holdings
from dra_driver.claims.state.redivision import Change
from dra_driver.devices.kinds import GpuPart
from dra_driver.devices.model import GpuUuid
from dra_driver.devices.shares import ConsumableSlot, Division, ShareSlot
from dra_driver.errors import TransientError


class Offered(Protocol):
    """Knows what is offered of shares (claims/state/redivision.py)."""

    def in_force(self) -> Mapping[GpuPart, Division]:
        """Return the divisions by which shares were offered last."""
        ...

    def allowed(
        self, wanted: Mapping[GpuPart, Division], *, with_counters: bool
    ) -> Mapping[GpuPart, Division]:
        """Return the divisions that may be offered, of those in force and those wanted."""
        ...


class NothingOffered:
    """Nothing was offered before: what is wanted may be offered at once."""

    def in_force(self) -> Mapping[GpuPart, Division]:
        """Return none."""
        return {}

    def allowed(
        self, wanted: Mapping[GpuPart, Division], *, with_counters: bool
    ) -> Mapping[GpuPart, Division]:
        """Return what is wanted."""
        del with_counters
        return wanted


class Divisions:
    """The divisions of this node's devices.

    Args:
        holdings: which claim has what.
        wanted: returns what the share config asks for, by device.
        why_unknown: returns why it is not known what it asks for; None if it is.
        offered: what has been offered.
    """

    def __init__(
        self,
        holdings: Holdings,
        wanted: Callable[[], Mapping[GpuPart, Division]],
        why_unknown: Callable[[], str | None],
        offered: Offered,
    ) -> None:
        self._holdings = holdings
        self._wanted = wanted
        self._why_unknown = why_unknown
        self._offered = offered

    def of(self, device: GpuPart) -> Division | None:
        """Return the division that holds for a device now; None: it is not divided.

        Raises:
            StateError: the records cannot be read.
            TransientError: nobody has a share of it, and the share config could not be read yet.
        """
        wanted = {**self._wanted(), **self._offered.in_force()}
        found = self._holding([device.gpu], wanted, with_counters=True).get(device)
        reason = None if found else self._why_unknown()
        if reason is not None:
            raise TransientError(f"it is not known yet how {device.gpu} is shared: {reason}")
        return found

    def on(
        self, gpus: Iterable[GpuUuid], *, with_counters: bool = True
    ) -> Mapping[GpuPart, Division]:
        """Return the divisions by which shares of some GPUs' devices may be offered now.

        Without counters, or where GPUs are served together, only shares are offered of a divided
        GPU, and nothing but the division keeps its shares from claims that have something else of
        it: so these end first. So do those that consume a part of it, which no counter knows of.

        Args:
            gpus: the GPUs.
            with_counters: whether the API server stores counters.

        Raises:
            StateError: the records cannot be read.
        """
        chosen = list(gpus)
        wanted = self._offered.allowed(self._wanted(), with_counters=with_counters)
        found = self._holding(chosen, wanted, with_counters=with_counters)
        return {part: one for part, one in found.items() if not self._is_consumed(part)}

    def is_held(self, change: Change) -> bool:
        """Tell whether a claim that is prepared keeps a device divided as it is.

        Raises:
            StateError: the records cannot be read.
        """
        return any(
            change.is_held_by(entry.device.part, is_share=isinstance(entry.device, RecordedShare))
            for gpu in {part.gpu for part in change.served}
            for record in self._holdings.users_of(gpu)
            for entry in record.devices
            if not entry.admin_access
        )

    def _holding(
        self, gpus: Iterable[GpuUuid], wanted: Mapping[GpuPart, Division], *, with_counters: bool
    ) -> Mapping[GpuPart, Division]:
        """Return what claims have on some GPUs, and what of the wanted they leave free."""
        chosen = set(gpus)
        concerned = chosen | {gpu for division in wanted.values() for gpu in division.together}
        in_use = dict(self._in_use(concerned))
        taken = {gpu for division in in_use.values() for gpu in division.together}

        def is_free(part: GpuPart, division: Division) -> bool:
            served = {part.gpu, *division.together}
            if division not in in_use.values() and not taken.isdisjoint(served):
                return False  # another server has one of these GPUs meanwhile
            if division.together or not with_counters:
                return not any(map(self._is_held_otherwise, served))
            return True

        free = {part: one for part, one in wanted.items() if is_free(part, one)}
        found = free | in_use
        return {part: division for part, division in found.items() if part.gpu in chosen}

    def waiting(self, gpus: Iterable[GpuUuid]) -> frozenset[GpuPart]:
        """Return the devices that are not yet divided as the share config asks for.

        Raises:
            StateError: the records cannot be read.
        """
        chosen = set(gpus)
        now = self.on(chosen)
        wanted = {part: one for part, one in self._wanted().items() if part.gpu in chosen}
        return frozenset(
            part for part in now.keys() | wanted.keys() if now.get(part) != wanted.get(part)
        )

    def _in_use(self, gpus: Iterable[GpuUuid]) -> Iterator[tuple[GpuPart, Division]]:
        """Yield the divisions of which claims have shares."""
        for gpu in sorted(gpus):
            for record in self._holdings.users_of(gpu):
                for entry in record.devices:
                    division = _division_of(entry)
                    if division is not None:
                        yield entry.device.part.whole, division
                        for other in division.together:
                            yield GpuPart(gpu=other), division

    def _is_held_otherwise(self, gpu: GpuUuid) -> bool:
        """Tell whether a claim has something of a GPU that is no share."""
        return any(
            entry.device.gpu == gpu and not entry.admin_access and _division_of(entry) is None
            for record in self._holdings.users_of(gpu)
            for entry in record.devices
        )

    def _is_consumed(self, part: GpuPart) -> bool:
        """Tell whether a claim consumes a part of a device."""
        return any(
            entry.device.part.whole == part
            and isinstance(entry.device.part.share, ConsumableSlot)
            and not entry.admin_access
            for record in self._holdings.users_of(part.gpu)
            for entry in record.devices
        )


def _division_of(entry: DeviceRecord) -> Division | None:
    """Return the division that a claim's device is a share of; None for what is no such share."""
    device = entry.device
    if entry.admin_access or not isinstance(device, RecordedShare):
        return None
    return device.slot.division if isinstance(device.slot, ShareSlot) else None
