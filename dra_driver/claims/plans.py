"""Plans of a claim, made, applied and undone: the claims' side of sharing strategies and MIG.

In: config groups or recorded plans. Out: plans; edits; and a `PendingCleanup` for each that could
not be undone, with
the reason. The plans of a claim are for different GPUs, or can be undone each by itself, so they
run side by side: eight GPUs take no longer than one. But for MIG devices: they are there before
anything is set on them, and go last.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from dra_driver.cdi.model import Edits
from dra_driver.claims.config import ConfigGroup
from dra_driver.claims.mig import MIG
from dra_driver.claims.record import PendingCleanup
from dra_driver.devices.model import Gpu
from dra_driver.errors import ConfigError, DriverError, StateError, TransientError
from dra_driver.sharing.base import (
    DeviceUuid,
    Effect,
    GpuPart,
    Group,
    MigUnit,
    Plan,
    Sharing,
    overlap,
    strategy_name,
)

Unit = Gpu | MigUnit
"""What a device of a claim is, once it is there."""


class Strategies:
    """The sharing strategies of this node, and MIG. Callers hold the GPUs' locks.

    Args:
        by_name: the strategies (sharing/base.py).
        on_failed_undo: told the strategy's name each time something cannot be taken back.
        mig: makes MIG devices (claims/mig.py); None where there are none.
    """

    def __init__(
        self,
        by_name: Mapping[str, Sharing],
        on_failed_undo: Callable[[str], None] = lambda _: None,
        mig: Effect | None = None,
    ) -> None:
        self._by_name = by_name
        self._effects: dict[str, Effect] = {**by_name, **({MIG: mig} if mig else {})}
        self._on_failed_undo = on_failed_undo

    def plan(
        self,
        uid: str,
        groups: Sequence[ConfigGroup],
        units: Mapping[str, Unit],
        deadline: float,
    ) -> tuple[Plan, ...]:
        """Return the plans for a claim's groups; `units` are by device name.

        Raises:
            ConfigError: a config asks for what these devices or this driver cannot do.
            DeviceError, TransientError: a GPU does not say how it is set, or what it can do.
        """
        named: dict[str, list[ConfigGroup]] = {}
        for group in groups:
            named.setdefault(strategy_name(group.config), []).append(group)
        plans: list[Plan] = []
        for name, members in named.items():
            strategy = self._by_name.get(name)
            if strategy is None:
                raise ConfigError(
                    f"sharing strategy {name} is not available in this version of the driver: "
                    f"remove `sharing` from the {members[0].config.kind} of request "
                    f"{members[0].results[0].request}"
                )
            plans += strategy.plan([_group(uid, group, units) for group in members], deadline)
        return tuple(plans)

    def edits(self, plans: Sequence[Plan]) -> dict[DeviceUuid, Edits]:
        """Return what containers get for the plans, by the device they use."""
        found: dict[DeviceUuid, Edits] = {}
        for plan in plans:
            for uuid, edits in self._of(plan).edits(plan).items():
                found[uuid] = found.get(uuid, Edits()) + edits
        return found

    def apply(self, plans: Sequence[Plan], deadline: float) -> None:
        """Bring all plans about, or fail when every one of them has ended.

        Raises:
            ConfigError, DeviceError, TransientError: one could not be; others may have been.
        """
        for error in _each(plans, lambda plan: self._of(plan).apply(plan, deadline)):
            if error is not None:
                raise error

    def ensure(self, plans: Sequence[Plan], deadline: float | None) -> None:
        """See to it that plans that were applied still are.

        Raises:
            DeviceError, TransientError: one is not, by the deadline.
        """
        for plan in plans:
            self._of(plan).ensure(plan, deadline)

    def undo(
        self, plans: Sequence[Plan], deadline: float, owed: Sequence[PendingCleanup] = ()
    ) -> tuple[PendingCleanup, ...]:
        """Take plans back, those of MIG last; return those that could not be, with the reasons.

        `owed` is what else could not be taken back and may be on the same devices.
        """
        left = self._undo([plan for plan in plans if plan.strategy != MIG], deadline)
        last: list[Plan] = []
        for plan in plans:
            if plan.strategy == MIG:
                # Who is still on a device is not to have it destroyed below it.
                users = (d for d in (*left, *owed) if d.plan.strategy != MIG)
                user = next((d for d in users if self.excludes(d.plan, plan.parts)), None)
                if user is None:
                    last.append(plan)
                else:
                    # Our own daemon, no process of the pod: no reason for the pod to stay.
                    left += (PendingCleanup(plan=plan, reason=user.reason),)
        return left + self._undo(last, deadline)

    def _undo(self, plans: Sequence[Plan], deadline: float) -> tuple[PendingCleanup, ...]:
        outcomes = _each(plans, lambda plan: self._of(plan).undo(plan, deadline))
        left = tuple(
            PendingCleanup(plan=plan, reason=str(error), may_pass=isinstance(error, TransientError))
            for plan, error in zip(plans, outcomes, strict=True)
            if error is not None
        )
        for cleanup in left:
            self._on_failed_undo(cleanup.plan.strategy)
        return left

    def survives_reboot(self, plan: Plan) -> bool:
        """Tell whether what the plan makes lives by itself; of an unknown strategy, it may."""
        effect = self._effects.get(plan.strategy)
        return effect is None or effect.survives_reboot

    def is_exclusive(self, plan: Plan) -> bool:
        """Tell whether nobody else can have the plan's parts before it is undone.

        A setting can be overruled. A daemon cannot, and neither can a MIG device, which takes the
        place of the next one.
        """
        return self.survives_reboot(plan) or (plan.strategy == MIG and bool(plan.places))

    def excludes(self, plan: Plan, parts: Sequence[GpuPart]) -> bool:
        """Tell whether a plan keeps some parts from being used until it is undone."""
        return self.is_exclusive(plan) and overlap(plan.parts, parts)

    def leftovers(self) -> dict[str, list[Plan]]:
        """Return by claim UID what would undo all that lives by itself here, recorded or not."""
        found: dict[str, list[Plan]] = {}
        for effect in self._effects.values():
            for uid, plan in effect.leftovers().items():
                found.setdefault(uid, []).append(plan)
        return found

    def _of(self, plan: Plan) -> Effect:
        effect = self._effects.get(plan.strategy)
        if effect is None:
            raise StateError(
                f"the claim was prepared with sharing strategy {plan.strategy}, which this version "
                "of the driver does not know; install the version that prepared it"
            )
        return effect


def _group(uid: str, group: ConfigGroup, units: Mapping[str, Unit]) -> Group:
    # The same device can be in a group twice, for two requests.
    members = {result.device: units[result.device] for result in group.results}.values()
    return Group(
        claim=uid,
        config=group.config,
        gpus=tuple(unit for unit in members if isinstance(unit, Gpu)),
        migs=tuple(unit for unit in members if isinstance(unit, MigUnit)),
    )


def _each(plans: Sequence[Plan], call: Callable[[Plan], None]) -> list[DriverError | None]:
    """Call for each plan and return their errors, when all have ended."""

    def outcome(plan: Plan) -> DriverError | None:
        try:
            call(plan)
        except DriverError as error:
            return error
        return None

    if len(plans) <= 1:
        return [outcome(plan) for plan in plans]
    # Each with what this thread's log lines say of the claim.
    contexts = [copy_context() for _ in plans]
    with ThreadPoolExecutor(len(plans), thread_name_prefix="plan") as pool:
        return list(pool.map(lambda context, plan: context.run(outcome, plan), contexts, plans))
