"""The sharing strategies of this node, for the plans of one claim: made, applied and undone.

In: config groups and the devices they are for, or recorded plans. Out: plans, container edits. The
plans of a claim are for different GPUs, or can be undone each by itself, so they run side by side.
Callers hold the GPUs' locks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from dra_driver.cdi.model import Edits
from dra_driver.claims import parallel
from dra_driver.claims.config import ConfigGroup
from dra_driver.devices.kinds import NodeDevice
from dra_driver.devices.model import Gpu, MigDevice, MigUuid, Partition
from dra_driver.errors import ConfigError, DriverError, StateError
from dra_driver.sharing.base import (
    DeviceUuid,
    Group,
    MigUnit,
    Sharing,
    SharingPlan,
    strategy_name,
)


class Strategies:
    """The sharing strategies (sharing/base.py), by name."""

    def __init__(self, by_name: Mapping[str, Sharing]) -> None:
        self._by_name = by_name

    def plan(
        self,
        uid: str,
        groups: Sequence[ConfigGroup],
        devices: Mapping[str, NodeDevice],
        owed: tuple[SharingPlan, ...],
        deadline: float,
    ) -> tuple[SharingPlan, ...]:
        """Return the plans for a claim's groups; `devices` are by name, and all of them exist.

        `owed` are plans of former claims on them that could not be undone yet.

        Raises:
            ConfigError: a config asks for what these devices or this driver cannot do.
            DeviceError, TransientError: a GPU does not say how it is set, or what it can do.
        """
        named: dict[str, list[ConfigGroup]] = {}
        for group in groups:
            named.setdefault(strategy_name(group.config), []).append(group)
        plans: list[SharingPlan] = []
        for name, members in named.items():
            strategy = self._by_name.get(name)
            if strategy is None:
                raise ConfigError(
                    f"sharing strategy {name} is not available in this version of the driver: "
                    f"remove `sharing` from the {members[0].config.kind} of request "
                    f"{members[0].results[0].request}"
                )
            asked = [replace(_group(uid, group, devices), owed=owed) for group in members]
            plans += strategy.plan(asked, deadline)
        return tuple(plans)

    def dry_plan(
        self,
        uid: str,
        groups: Sequence[ConfigGroup],
        devices: Mapping[str, NodeDevice],
        owed: tuple[SharingPlan, ...],
        deadline: float,
    ) -> None:
        """Plan as if the devices that are yet to be made were there, and throw the plans away.

        A wrong config is heard of before anything is made for it. Raises as `plan`.
        """
        self.plan(uid, groups, {n: _as_if_made(one) for n, one in devices.items()}, owed, deadline)

    def edits(self, plans: Sequence[SharingPlan]) -> dict[DeviceUuid, Edits]:
        """Return what containers get for the plans, by the device they use."""
        found: dict[DeviceUuid, Edits] = {}
        for plan in plans:
            for uuid, edits in self._of(plan).edits(plan).items():
                found[uuid] = found.get(uuid, Edits()) + edits
        return found

    def apply(self, plans: Sequence[SharingPlan], deadline: float) -> None:
        """Bring all plans about, or fail when every one of them has ended.

        Raises:
            ConfigError, DeviceError, TransientError: one could not be; others may have been.
        """
        parallel.all_or_error(plans, lambda plan: self._of(plan).apply(plan, deadline))

    def ensure(self, plans: Sequence[SharingPlan], deadline: float | None) -> None:
        """See to it that plans that were applied still are.

        Raises:
            DeviceError, TransientError: one is not, by the deadline.
        """
        for plan in plans:
            self._of(plan).ensure(plan, deadline)

    def undo(
        self, plans: Sequence[SharingPlan], deadline: float
    ) -> list[tuple[SharingPlan, DriverError]]:
        """Take plans back; return those that could not be, with the reasons."""
        ends = parallel.outcomes(plans, lambda plan: self._of(plan).undo(plan, deadline))
        return [
            (plan, end)
            for plan, end in zip(plans, ends, strict=True)
            if isinstance(end, DriverError)
        ]

    def survives_reboot(self, plan: SharingPlan) -> bool:
        """Tell whether what the plan makes lives by itself; of an unknown strategy, it may."""
        strategy = self._by_name.get(plan.strategy)
        return strategy is None or strategy.survives_reboot

    def claims(self) -> set[str]:
        """Return the UIDs of claims for which something is there that lives by itself."""
        return {uid for strategy in self._by_name.values() for uid in strategy.claims()}

    def sweep(self, uid: str, deadline: float) -> list[tuple[str, DriverError]]:
        """Undo all that is there for a claim without a record; return what could not be."""
        names = [name for name, one in self._by_name.items() if uid in one.claims()]
        ends = parallel.outcomes(names, lambda name: self._by_name[name].sweep(uid, deadline))
        return [
            (name, end)
            for name, end in zip(names, ends, strict=True)
            if isinstance(end, DriverError)
        ]

    def _of(self, plan: SharingPlan) -> Sharing:
        strategy = self._by_name.get(plan.strategy)
        if strategy is None:
            raise StateError(
                f"the claim was prepared with sharing strategy {plan.strategy}, which this version "
                "of the driver does not know; install the version that prepared it"
            )
        return strategy


def _group(uid: str, group: ConfigGroup, devices: Mapping[str, NodeDevice]) -> Group:
    # The same device can be in a group twice, for two requests.
    members = {result.device: devices[result.device] for result in group.results}
    gpus: list[Gpu] = []
    migs: list[MigUnit] = []
    for name, member in members.items():
        match member.device:
            case Gpu():
                gpus.append(member.device)
            case MigDevice():
                migs.append(MigUnit(gpu=member.gpu, device=member.device))
            case Partition():
                raise StateError(f'device "{name}" cannot be shared before it is made')
            case _:
                assert_never(member.device)
    return Group(claim=uid, config=group.config, gpus=tuple(gpus), migs=tuple(migs))


def _as_if_made(one: NodeDevice) -> NodeDevice:
    """Return a MIG device in place of one yet to be made; its UUID is not known, but no other's."""
    match one.device:
        case Gpu() | MigDevice():
            return one
        case Partition():
            slot = one.device.slot
            device = MigDevice(
                parent=one.device.parent,
                profile=one.device.profile,
                placement=one.device.placement,
                gpu_instance=0,
                compute_instance=0,
                uuid=MigUuid(f"MIG-to-be-made-{slot.gpu}-{slot.profile_id}-{slot.start}"),
                made_here=True,
            )
            return NodeDevice(gpu=one.gpu, device=device)
        case _:
            assert_never(one.device)
