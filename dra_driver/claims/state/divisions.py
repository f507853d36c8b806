"""How the devices of this node are divided into shares, and how they come to be divided anew.

In: the divisions that the share config wants, those that shares were offered by last
(claims/state/in_force.py), and the records of claims. Out: the division that holds for each device.
The scheduler allocates from what is published, and the kubelet prepares seconds to minutes later;
so a device of which the config wants another division than is in force goes through these states:

    held       a claim on this node has something in the way: what it has a share of is offered
    withdrawn  none has: nothing is offered, and all claims are looked for (reconcile/resharing.py)
    blocked    claims were found, or could not be looked for: the former division is offered again
    made       none were found: what is wanted is in force, and offered

Nothing but what is in force is kept, so that a new driver, also after a reboot, begins with the
first. A whole GPU and its first shares need no such look where counters keep them apart.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Protocol

from dra_driver.claims.model.devices import DeviceRecord, RecordedShare
from dra_driver.claims.state.holdings import Holdings
from dra_driver.claims.state.in_force import DivisionsInForce
from dra_driver.dataclass import dataclass
from dra_driver.devices.kinds import GpuPart
from dra_driver.devices.model import GpuUuid
from dra_driver.devices.shares import ConsumableSlot, Division, ShareSlot
from dra_driver.errors import TransientError


class WantedDivisions(Protocol):
    """Knows what the share config of this node asks for (node/shares.py)."""

    @property
    def with_consumables(self) -> bool:
        """Whether several claims can have a device that is not divided; no counter knows of it."""
        ...

    def gpus(self) -> frozenset[GpuUuid]:
        """Return the GPUs of this node."""
        ...

    def wanted(self) -> Mapping[GpuPart, Division]:
        """Return how it wants devices to be divided."""
        ...

    def why_unknown(self) -> str | None:
        """Return why that is not known; None if it is."""
        ...


@dataclass(frozen=True, kw_only=True)
class Change:
    """A device that is to be divided in another way; None is not at all."""

    part: GpuPart
    former: Division | None
    wanted: Division | None
    with_counters: bool

    @cached_property
    def served(self) -> frozenset[GpuPart]:
        """All that is served together with it, before or after."""
        others = {gpu for one in (self.former, self.wanted) if one for gpu in one.together}
        return frozenset({self.part, *(GpuPart(gpu=gpu) for gpu in others)})

    def concerns(self, part: GpuPart) -> bool:
        """Tell whether a part of a GPU is, or overlaps, what is served."""
        return any(part.whole.overlaps(one) for one in self.served)

    def is_held_by(self, part: GpuPart, *, is_share: bool) -> bool:
        """Tell whether a claim that has a part, or a share of any kind of it, is in the way."""
        if self.with_counters and len(self.served) == 1:
            return is_share and part.whole == self.part  # counters keep all else apart
        return self.concerns(part)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offered:
    """By which divisions shares were offered, and whether counters are stored."""

    divisions: Mapping[GpuPart, Division]
    with_counters: bool


class Divisions:
    """The divisions of this node's devices. Methods may be called from any thread.

    Those that read records raise StateError if they cannot be read.

    Without counters, or where GPUs are served together, only shares are offered of a divided GPU,
    and nothing but the division keeps its shares from claims that have something else of it: so
    these end first. So do those that consume a part of it, which no counter knows of.
    """

    def __init__(
        self, holdings: Holdings, config: WantedDivisions, in_force: DivisionsInForce
    ) -> None:
        self._holdings = holdings
        self._config = config
        self._in_force = in_force
        self._offered: _Offered | None = None
        self._blocked: Mapping[Change, str] = {}

    # What holds

    def of(self, device: GpuPart) -> Division | None:
        """Return the division that holds for a device now; None: it is not divided.

        Raises TransientError if nobody has a share of it, and the share config is not read yet.
        """
        wanted = {**self._config.wanted(), **self._in_force.current()}
        found = self._holding([device.gpu], wanted, with_counters=True).get(device)
        reason = None if found else self._config.why_unknown()
        if reason is not None:
            raise TransientError(f"it is not known yet how {device.gpu} is shared: {reason}")
        return found

    def on(
        self, gpus: Iterable[GpuUuid], *, with_counters: bool = True
    ) -> Mapping[GpuPart, Division]:
        """Return the divisions by which shares of some GPUs' devices may be offered now."""
        allowed = self._allowed(self._config.wanted(), with_counters=with_counters)
        found = self._holding(gpus, allowed, with_counters=with_counters)
        return {part: one for part, one in found.items() if not self._is_consumed(part)}

    def waiting(self, gpus: Iterable[GpuUuid]) -> frozenset[GpuPart]:
        """Return the devices that are not yet divided as the share config asks for."""
        chosen = set(gpus)
        now = self.on(chosen)
        wanted = {part: one for part, one in self._config.wanted().items() if part.gpu in chosen}
        return frozenset(
            part for part in now.keys() | wanted.keys() if now.get(part) != wanted.get(part)
        )

    # What is offered

    def offer(self, gpus: Iterable[GpuUuid], *, with_counters: bool) -> Mapping[GpuPart, Division]:
        """Put what holds for some GPUs in force, which is about to be published; return it.

        `with_counters` says whether the API server stores counters.
        """
        found = self.on(gpus, with_counters=with_counters)
        self._offered = _Offered(divisions=found, with_counters=with_counters)
        self._in_force.change(found)
        return found

    def are_any(self) -> bool:
        """Tell whether devices are divided or are to be; else no claim's end changes a thing."""
        last = self._offered
        is_offered = last is not None and bool(last.divisions)
        return is_offered or bool(self._config.wanted()) or bool(self._in_force.current())

    def is_outdated(self) -> bool:
        """Tell whether other divisions hold by now than those that were offered last."""
        last = self._offered
        return last is not None and last.divisions != self.on(
            self._config.gpus(), with_counters=last.with_counters
        )

    def withdrawn(self) -> frozenset[GpuPart]:
        """Return the devices of which nothing is to be offered while claims are looked for."""
        return frozenset(
            part
            for change in self.changes()
            if change not in self._blocked and not self.is_held(change)
            for part in change.served
        )

    # What is to change

    def changes(self) -> tuple[Change, ...]:
        """Return what has to be looked for before it is made; nothing before the first offer."""
        last = self._offered
        if last is None or self._config.why_unknown() is not None:
            return ()
        wanted, former = self._config.wanted(), self._in_force.current()
        there = self._config.gpus()  # now, not before: of a GPU that has gone nothing changes
        free = self._allowed(wanted, with_counters=last.with_counters)
        return tuple(
            Change(
                part=part,
                former=former.get(part),
                wanted=wanted.get(part),
                with_counters=last.with_counters,
            )
            for part in sorted(former.keys() | wanted.keys(), key=_order)
            if part.gpu in there and free.get(part) != wanted.get(part)
        )

    def is_held(self, change: Change) -> bool:
        """Tell whether a claim that is prepared keeps a device divided as it is."""
        return any(
            change.is_held_by(entry.device.part, is_share=isinstance(entry.device, RecordedShare))
            for part in change.served
            for entry in self._entries_on(part.gpu)
        )

    def blocked(self) -> Mapping[Change, str]:
        """Return the changes that wait, and what for; the former divisions are offered so long."""
        return self._blocked

    def block(self, changes: Mapping[Change, str]) -> None:
        """Let exactly these changes wait."""
        self._blocked = dict(changes)

    def make(self, changes: Iterable[Change]) -> None:
        """Put what these changes want in force."""
        self._in_force.change({one.part: one.wanted for one in changes})

    def _allowed(
        self, wanted: Mapping[GpuPart, Division], *, with_counters: bool
    ) -> Mapping[GpuPart, Division]:
        """Return the divisions that claims may leave to be offered: in force, or without a look."""
        needs_none = {
            part: one
            for part, one in wanted.items()
            if with_counters and not one.together and not self._config.with_consumables
        }
        return needs_none | dict(self._in_force.current())

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

    # What claims have

    def _in_use(self, gpus: Iterable[GpuUuid]) -> Iterator[tuple[GpuPart, Division]]:
        """Yield the divisions of which claims have shares."""
        for gpu in sorted(gpus):
            for entry in self._entries_on(gpu):
                division = _division_of(entry)
                if division is not None:
                    yield entry.device.part.whole, division
                    for other in division.together:
                        yield GpuPart(gpu=other), division

    def _is_held_otherwise(self, gpu: GpuUuid) -> bool:
        """Tell whether a claim has something of a GPU that is no share."""
        return any(
            entry.device.gpu == gpu and _division_of(entry) is None
            for entry in self._entries_on(gpu)
        )

    def _is_consumed(self, part: GpuPart) -> bool:
        """Tell whether a claim consumes a part of a device."""
        return any(
            entry.device.part.whole == part and isinstance(entry.device.part.share, ConsumableSlot)
            for entry in self._entries_on(part.gpu)
        )

    def _entries_on(self, gpu: GpuUuid) -> Iterator[DeviceRecord]:
        """Yield all that claims with something of a GPU have; admin access keeps nobody away."""
        for record in self._holdings.users_of(gpu):
            yield from (entry for entry in record.devices if not entry.admin_access)


def _division_of(entry: DeviceRecord) -> Division | None:
    """Return the division that a claim's device is a share of; None for what is no such share."""
    slot = entry.device.part.share
    return slot.division if isinstance(slot, ShareSlot) else None


def _order(part: GpuPart) -> tuple[str, int]:
    return part.gpu, -1 if part.placement is None else part.placement.start
