"""When a device may be divided anew: what is in force, what is wanted, and who is in the way.

In: the divisions in force (claims/state/in_force.py), those that the share config wants, and what
keeps claims to the former ones. Out: the divisions that may be offered, and the devices of which
nothing is offered while claims are looked for (claims/reconcile/redivide.py does that). Rules: the
scheduler allocates from what is published, and the kubelet prepares seconds to minutes later; so
what was offered holds until it has been withdrawn and nobody was found to have been allocated
anything of it. A whole GPU and its shares need no such look where counters keep them apart.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from dra_driver.claims.state.in_force import DivisionsInForce
from dra_driver.devices.kinds import GpuPart
from dra_driver.devices.model import GpuUuid
from dra_driver.devices.shares import Division


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
        """Tell whether a claim that has something has to give it back before.

        Args:
            part: what the claim has; of a share the device.
            is_share: whether it is a share of any kind, and not the device itself.
        """
        if self.with_counters and len(self.served) == 1:
            return is_share and part.whole == self.part  # counters keep all else apart
        return self.concerns(part)


class Redivision:
    """The divisions of this node as they change. Methods may be called from any thread.

    Args:
        in_force: what was offered last.
        with_consumables: whether several claims can have a device that is not divided: counters
            do not know of these.
    """

    def __init__(self, in_force: DivisionsInForce, *, with_consumables: bool) -> None:
        self._in_force = in_force
        self._with_consumables = with_consumables
        self._with_counters: bool | None = None
        self._blocked: Mapping[Change, str] = {}

    def in_force(self) -> Mapping[GpuPart, Division]:
        """Return the divisions by which shares were offered last."""
        return self._in_force.current()

    def allowed(
        self, wanted: Mapping[GpuPart, Division], *, with_counters: bool
    ) -> Mapping[GpuPart, Division]:
        """Return the divisions that may be offered: those in force, and what needs no look.

        Args:
            wanted: what the share config asks for.
            with_counters: whether the API server stores counters.
        """
        needs_none = {
            part: one
            for part, one in wanted.items()
            if with_counters and not one.together and not self._with_consumables
        }
        return needs_none | dict(self._in_force.current())

    def changes(
        self, wanted: Mapping[GpuPart, Division], gpus: Iterable[GpuUuid]
    ) -> tuple[Change, ...]:
        """Return what has to be looked for before it is made; nothing before the first offer."""
        if self._with_counters is None:
            return ()
        chosen, former = set(gpus), self._in_force.current()
        free = self.allowed(wanted, with_counters=self._with_counters)
        return tuple(
            Change(
                part=part,
                former=former.get(part),
                wanted=wanted.get(part),
                with_counters=self._with_counters,
            )
            for part in sorted(former.keys() | wanted.keys(), key=_order)
            if part.gpu in chosen and free.get(part) != wanted.get(part)
        )

    def offer(self, divisions: Mapping[GpuPart, Division], *, with_counters: bool) -> None:
        """Put in force what is about to be published, to an API server that stores counters or not.

        Until the first time nothing changes.
        """
        self._with_counters = with_counters
        self._in_force.change(divisions)

    def blocked(self) -> Mapping[Change, str]:
        """Return the changes that wait, and what for; the former divisions are offered so long."""
        return self._blocked

    def block(self, changes: Mapping[Change, str]) -> None:
        """Let exactly these changes wait."""
        self._blocked = dict(changes)

    def make(self, changes: Iterable[Change]) -> None:
        """Put what these changes want in force."""
        self._in_force.change({one.part: one.wanted for one in changes})


def _order(part: GpuPart) -> tuple[str, int]:
    return part.gpu, -1 if part.placement is None else part.placement.start
