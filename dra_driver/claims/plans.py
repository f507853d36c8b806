"""Plans of a claim, made, applied and undone: the claims' side of sharing strategies.

In: config groups or recorded plans. Out: plans; edits; and of what could not be undone `Debt`s with
the reason. The plans of a claim are for different GPUs, or can be undone each by itself, so they
run side by side: eight GPUs take no longer than one.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from dra_driver.cdi.model import Edits
from dra_driver.claims.config import ConfigGroup
from dra_driver.claims.record import Debt
from dra_driver.devices.model import Gpu, GpuUuid
from dra_driver.errors import ConfigError, DriverError, StateError
from dra_driver.sharing.base import Group, Plan, Sharing, strategy_name


class Strategies:
    """The sharing strategies of this node. Callers hold the GPUs' locks.

    Args:
        by_name: the strategies (sharing/base.py).
        on_failed_undo: told the strategy's name each time something cannot be taken back.
    """

    def __init__(
        self,
        by_name: Mapping[str, Sharing],
        on_failed_undo: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._by_name = by_name
        self._on_failed_undo = on_failed_undo

    def plan(
        self, uid: str, groups: Sequence[ConfigGroup], gpus: Mapping[str, Gpu]
    ) -> tuple[Plan, ...]:
        """Return the plans for a claim's groups; `gpus` are by device name.

        Raises:
            ConfigError: a config asks for what these GPUs or this driver cannot do.
            DeviceError, TransientError: a GPU does not say how it is set.
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
            plans += strategy.plan([_group(uid, group, gpus) for group in members])
        return tuple(plans)

    def edits(self, plans: Sequence[Plan]) -> dict[GpuUuid, Edits]:
        """Return what containers get for the plans, by the GPU they use."""
        found: dict[GpuUuid, Edits] = {}
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

    def uphold(self, plans: Sequence[Plan], deadline: float | None) -> None:
        """See to it that plans that were applied still are.

        Raises:
            DeviceError, TransientError: one is not, by the deadline.
        """
        for plan in plans:
            self._of(plan).uphold(plan, deadline)

    def undo(self, plans: Sequence[Plan], deadline: float) -> tuple[Debt, ...]:
        """Take plans back; return those that could not be, with the reasons."""
        outcomes = _each(plans, lambda plan: self._of(plan).undo(plan, deadline))
        left = tuple(
            Debt(plan=plan, reason=str(error))
            for plan, error in zip(plans, outcomes, strict=True)
            if error is not None
        )
        for debt in left:
            self._on_failed_undo(debt.plan.strategy)
        return left

    def lives_on(self, plan: Plan) -> bool:
        """Tell whether what the plan makes lives by itself; of an unknown strategy, it may."""
        strategy = self._by_name.get(plan.strategy)
        return strategy is None or strategy.lives_on

    def leftovers(self) -> dict[str, list[Plan]]:
        """Return by claim UID what would undo all that lives by itself here, recorded or not."""
        found: dict[str, list[Plan]] = {}
        for strategy in self._by_name.values():
            for uid, plan in strategy.leftovers().items():
                found.setdefault(uid, []).append(plan)
        return found

    def _of(self, plan: Plan) -> Sharing:
        strategy = self._by_name.get(plan.strategy)
        if strategy is None:
            raise StateError(
                f"the claim was prepared with sharing strategy {plan.strategy}, which this version "
                "of the driver does not know; install the version that prepared it"
            )
        return strategy


def _group(uid: str, group: ConfigGroup, gpus: Mapping[str, Gpu]) -> Group:
    members = {gpus[result.device].uuid: gpus[result.device] for result in group.results}
    return Group(claim=uid, gpus=tuple(members.values()), config=group.config)


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
