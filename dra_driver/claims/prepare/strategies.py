"""The sharing strategies of this node, for the plans of one claim: made, applied and undone.

In: config groups and the devices they are for, or recorded plans. Out: plans, container edits. The
plans of a claim are for different GPUs, or can be undone each by itself, so they run side by side.
Callers hold the GPUs' locks, but for `wait_ready` and `let_go`: nobody waits for a daemon with a
GPU's lock in hand.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import assert_never

from msgspec.structs import replace

from dra_driver.cdi.model import Edits
from dra_driver.claims.model.config import ConfigGroup
from dra_driver.claims.model.devices import restored
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.claims.prepare import parallel
from dra_driver.claims.prepare.allocation import Allocation
from dra_driver.devices.kinds import NodeDevice
from dra_driver.devices.model import Gpu, MigDevice, MigUuid, Partition
from dra_driver.devices.shares import ConsumableShare, Share
from dra_driver.errors import ConfigError, DriverError, StateError
from dra_driver.sharing import shares
from dra_driver.sharing.base import (
    DeviceKey,
    Group,
    MigUnit,
    ShareUnit,
    Sharing,
    SharingPlan,
    strategy_name,
)

NO_WAIT = -math.inf
"""A deadline by which nothing is waited for."""


class Strategies:
    """The sharing strategies (sharing/base.py), by name."""

    def __init__(self, by_name: Mapping[str, Sharing]) -> None:
        self._by_name = by_name

    def plan(
        self,
        record: ClaimRecord,
        allocation: Allocation,
        owed: tuple[SharingPlan, ...],
        deadline: float,
    ) -> tuple[SharingPlan, ...]:
        """Return the plans for the devices of a record, by the configs that hold for them.

        Devices that are yet to be made are planned for as if they were there: such plans only show
        whether the configs can be had. `owed` are plans of former claims on the devices that could
        not be undone yet. Raises ConfigError if a config asks for what these devices or this driver
        cannot do, DeviceError or TransientError if a GPU does not say how it is set.
        """
        devices = {
            entry.allocation_id: restored(entry.device, allocation.devices[entry.allocation_id].gpu)
            for entry in record.devices
        }
        named: dict[str, list[ConfigGroup]] = {}
        for name, group in _by_strategy(allocation.groups, devices):
            named.setdefault(name, []).append(group)
        plans: list[SharingPlan] = []
        for name, members in named.items():
            strategy = self._by_name.get(name)
            if strategy is None:
                config = members[0].config
                raise ConfigError(
                    f"sharing strategy {name} is not available in this version of the driver: "
                    f"remove `sharing` from the {config.kind if config else 'config'} of request "
                    f"{members[0].results[0].request}"
                )
            asked = [replace(_group(record, group, devices), owed=owed) for group in members]
            plans += strategy.plan(asked, deadline)
        return tuple(plans)

    def edits(self, plans: Sequence[SharingPlan]) -> dict[DeviceKey, Edits]:
        """Return what containers get for the plans, by the device they use."""
        found: dict[DeviceKey, Edits] = {}
        for plan in plans:
            for uuid, edits in self._of(plan).edits(plan).items():
                found[uuid] = found.get(uuid, Edits()) + edits
        return found

    def apply(self, plans: Sequence[SharingPlan], deadline: float) -> bool:
        """Apply all plans side by side; tell whether containers can start without `wait_ready`."""
        parallel.all_or_error(plans, lambda plan: self._of(plan).apply(plan, deadline))
        return not any(self._of(plan).survives_reboot for plan in plans)

    def ensure(self, plans: Sequence[SharingPlan]) -> None:
        """See to it that applied plans still are. Raises DeviceError or TransientError."""
        for plan in plans:
            self._of(plan).ensure(plan)

    def wait_ready(
        self, plans: Sequence[SharingPlan], deadline: float, given_up: Callable[[], bool]
    ) -> None:
        """Wait until containers can start with the plans. Raises DeviceError or TransientError."""
        parallel.all_or_error(
            plans, lambda plan: self._of(plan).wait_ready(plan, deadline, given_up)
        )

    def let_go(self, plans: Iterable[SharingPlan], deadline: float) -> bool:
        """Ask for the end of what lives by itself, wait for it, and tell whether all has ended."""
        lasting = [plan for plan in plans if self.survives_reboot(plan)]
        return not parallel.failures(lasting, lambda plan: self._of(plan).let_go(plan, deadline))

    def undo(
        self, plans: Sequence[SharingPlan], deadline: float
    ) -> list[tuple[SharingPlan, DriverError]]:
        """Take plans back; return those that could not be, with the reasons."""
        return parallel.failures(plans, lambda plan: self._of(plan).undo(plan, deadline))

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
        return parallel.failures(names, lambda name: self._by_name[name].sweep(uid, deadline))

    def _of(self, plan: SharingPlan) -> Sharing:
        strategy = self._by_name.get(plan.strategy)
        if strategy is None:
            raise StateError(
                f"the claim was prepared with sharing strategy {plan.strategy}, which this version "
                "of the driver does not know; install the version that prepared it"
            )
        return strategy


def _by_strategy(
    groups: Sequence[ConfigGroup], devices: Mapping[str, NodeDevice]
) -> Iterator[tuple[str, ConfigGroup]]:
    """Yield each group with its strategy. How shares are used, the node says, and no claim."""
    for group in groups:
        divided = [one for one in group.results if _is_share(devices[one.allocation_id])]
        others = [one for one in group.results if one not in divided]
        if divided:
            yield shares.NAME, replace(group, results=tuple(divided))
        if others:
            yield strategy_name(group.config), replace(group, results=tuple(others))


def _is_share(one: NodeDevice) -> bool:
    return isinstance(one.device, Share | ConsumableShare)


def _group(claim: ClaimRecord, group: ConfigGroup, devices: Mapping[str, NodeDevice]) -> Group:
    # The same device can be in a group twice, for two requests.
    members = {result.allocation_id: result for result in group.results}
    gpus: list[Gpu] = []
    migs: list[MigUnit] = []
    units: list[ShareUnit] = []
    for allocation, result in members.items():
        name, member = result.device, devices[allocation]
        match member.device:
            case Gpu():
                gpus.append(member.device)
            case MigDevice() | Partition():
                migs.append(MigUnit(gpu=member.gpu, device=_made(member.device)))
            case Share() | ConsumableShare():
                of = member.device.of
                share = replace(member.device, of=of if isinstance(of, Gpu) else _made(of))
                request = result.request
                units.append(ShareUnit(name=name, request=request, gpu=member.gpu, share=share))
            case _:
                assert_never(member.device)
    return Group(
        claim=claim.ref.uid,
        name=str(claim.ref),
        pods={pod.uid: pod.name for pod in claim.pods},
        pod_groups=tuple(group.name for group in claim.groups),
        config=group.config,
        gpus=tuple(gpus),
        migs=tuple(migs),
        shares=tuple(units),
    )


def _made(device: MigDevice | Partition) -> MigDevice:
    """Return a MIG device, in place of one yet to be made; its UUID is no other's."""
    if isinstance(device, MigDevice):
        return device
    slot = device.slot
    return MigDevice(
        parent=device.parent,
        profile=device.profile,
        placement=device.placement,
        gpu_instance=0,
        compute_instance=0,
        uuid=MigUuid(f"MIG-to-be-made-{slot.gpu}-{slot.profile_id}-{slot.start}"),
        made_here=True,
    )
