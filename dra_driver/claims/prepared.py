"""The claims prepared on this node: record, mark, hardware and CDI spec of each, kept as one.

Each method is a step between two consistent states, and a kill at any point in it is repaired by
the next call for the claim or by claims/reconcile.py. The order is always: mark the GPUs, write
down what will be changed, change it, write down that it is done, write the CDI spec; and back:
undo, delete spec, record, marks. Where no hardware is changed the first record is left out.

CDI specs are derived from records. Nothing here waits, asks the API server or takes a lock: callers
hold the lock of the claim and of the GPUs it holds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from dra_driver.cdi.model import Edits, Spec, SpecDevice
from dra_driver.cdi.spec import KIND, claim_device_id, claim_device_name
from dra_driver.claims.checkpoint import RecordStore
from dra_driver.claims.config import ConfigGroup
from dra_driver.claims.gpus import recorded_gpus
from dra_driver.claims.holders import GpuHolders
from dra_driver.claims.model import Claim, ClaimUid
from dra_driver.claims.ports import EditsSource, InventorySource, SpecFiles
from dra_driver.claims.record import DeviceRecord, Record, RecordState
from dra_driver.devices.model import Gpu, GpuUuid
from dra_driver.errors import ConfigError, DriverError, StateError
from dra_driver.sharing.base import Group, Plan, Sharing, strategy_name

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """What preparing is made of on this node. `strategies` are by name (sharing/base.py)."""

    inventory: InventorySource
    edits: EditsSource
    specs: SpecFiles
    strategies: Mapping[str, Sharing]


class PreparedClaims:
    """The claims of this node below the driver's own directory."""

    def __init__(
        self,
        directory: Path,
        parts: NodeParts,
        *,
        boot_id: str,
        step: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Open the directory, making it when needed.

        Args:
            directory: the driver's directory on the node.
            parts: what preparing is made of.
            boot_id: the kernel's (/proc/sys/kernel/random/boot_id).
            step: called with the name of each step that is done; tests end the process there.
        """
        self.records = RecordStore(directory)
        self._holders = GpuHolders(directory)
        self._parts = parts
        self._boot_id = boot_id
        self._step = step

    def holds(self, record: Record) -> bool:
        """Tell whether the record keeps others from its GPUs; after a reboot nothing uses them."""
        return self.is_of_this_boot(record) and record.state is not RecordState.RELEASED

    def is_of_this_boot(self, record: Record) -> bool:
        """Tell whether what the record says of hardware can still be true."""
        return record.boot_id == self._boot_id

    def is_prepared(self, record: Record) -> bool:
        """Tell whether the claim is prepared, and in this boot."""
        return self.is_of_this_boot(record) and record.state is RecordState.PREPARED

    def rival(self, record: Record) -> tuple[DeviceRecord, Record] | None:
        """Return another claim that holds one of the record's GPUs, and the device it is about.

        The cost depends on how many claims hold these GPUs, not on how many there are.
        """
        for device in record.devices:
            if device.admin_access:
                continue
            for uid in self._holders.of(device.uuid):
                if uid == record.ref.uid:
                    continue
                other = self.records.read(uid)
                if other and self.holds(other) and device.uuid in other.held_gpus:
                    return device, other
                self._holders.remove(device.uuid, uid)  # left by a crash, or of a former boot
        return None

    def draft(self, claim: Claim, gpus: Mapping[str, Gpu], groups: Sequence[ConfigGroup]) -> Record:
        """Return the record the claim will have. Nothing is changed yet.

        Args:
            claim: the claim.
            gpus: the GPU of each of its devices, by device name.
            groups: its results by config.

        Raises:
            ConfigError: a config asks for what these GPUs or this driver cannot do.
        """
        plans = [self._plan(claim.ref.uid, group, gpus) for group in groups]
        return Record(
            ref=claim.ref,
            boot_id=self._boot_id,
            state=RecordState.PREPARED,
            devices=tuple(
                DeviceRecord(
                    name=result.device,
                    uuid=gpus[result.device].uuid,
                    pool=result.pool,
                    request_names=(result.base_request,),
                    cdi_device_ids=(
                        claim_device_id(claim.ref.uid, result.device, result.share_id),
                    ),
                    admin_access=result.admin_access,
                    share_id=result.share_id,
                )
                for result in claim.results
            ),
            plans=tuple(plan for plan in plans if plan.changes),
        )

    def commit(self, record: Record) -> None:
        """Make a drafted record come true.

        Raises:
            DeviceError, TransientError: the hardware refused; what was changed has been undone.
            StateError: the disk refused; the next call for the claim finishes or undoes it.
        """
        # First what can fail without leaving anything behind.
        gpus = recorded_gpus(record.devices, self._parts.inventory.current())
        spec = self._spec(record, gpus)
        for uuid in record.held_gpus:
            self._holders.add(uuid, record.ref.uid)
        self._step("marked")
        if record.plans:
            self.records.write(replace(record, state=RecordState.PREPARING))
            self._step("intended")
            try:
                spec = self._with_plans(record, spec)
            except DriverError:
                self.release(record)
                raise
            self._step("applied")
        self.records.write(record)
        self._step("recorded")
        self._parts.specs.write(record.ref.uid, spec)
        self._step("specified")

    def restore(self, record: Record) -> None:
        """Bring marks and CDI spec of a prepared claim in line with its record.

        Raises:
            DeviceError, TransientError: a GPU of the claim is not there.
            StateError: the disk refused.
        """
        for uuid in record.held_gpus:
            self._holders.add(uuid, record.ref.uid)
        gpus = recorded_gpus(record.devices, self._parts.inventory.current())
        spec = self._with_plans(record, self._spec(record, gpus))
        self._parts.specs.write(record.ref.uid, spec)

    def release(self, record: Record) -> None:
        """Take back everything of a claim.

        What hardware refuses to take back stays in a record of its own and is tried again by
        `claims/reconcile.py`; it does not keep the claim's pod from ending.

        Raises:
            StateError: the record cannot be deleted.
        """
        uid = record.ref.uid
        left = tuple(plan for plan in reversed(record.plans) if not self._undone(plan, record))
        self._step("undone")
        self.delete_spec(uid)
        self._step("unspecified")
        if left:
            self.records.write(replace(record, state=RecordState.RELEASED, plans=left[::-1]))
        else:
            self.records.delete(uid)
        self._step("forgotten")
        for uuid in record.held_gpus:
            self._holders.remove(uuid, uid)

    def delete_spec(self, uid: ClaimUid) -> None:
        """Delete the claim's CDI spec; one that cannot be deleted is left to a later reconcile."""
        try:
            self._parts.specs.delete(uid)
        except DriverError as error:
            log.warning("spec not deleted", claim_uid=uid, reason=str(error))

    def has_spec(self, uid: ClaimUid) -> bool:
        """Tell whether the claim has a CDI spec."""
        return self._parts.specs.exists(uid)

    def delete_leftovers(self) -> None:
        """Delete what a killed process was writing into the CDI folder."""
        self._parts.specs.delete_leftovers()

    def specified(self) -> set[ClaimUid]:
        """Return the claims that have a CDI spec."""
        return {ClaimUid(uid) for uid in self._parts.specs.uids()}

    def _plan(self, uid: str, group: ConfigGroup, gpus: Mapping[str, Gpu]) -> Plan:
        name = strategy_name(group.config)
        strategy = self._parts.strategies.get(name)
        if strategy is None:
            raise ConfigError(
                f"sharing strategy {name} is not available in this version of the driver: remove "
                f"`sharing` from the {group.config.kind} of request {group.results[0].request}"
            )
        members = {gpus[result.device].uuid: gpus[result.device] for result in group.results}
        return strategy.plan(Group(claim=uid, gpus=tuple(members.values()), config=group.config))

    def _strategy(self, plan: Plan) -> Sharing:
        strategy = self._parts.strategies.get(plan.strategy)
        if strategy is None:
            raise StateError(
                f"the claim was prepared with sharing strategy {plan.strategy}, which this version "
                "of the driver does not know; install the version that prepared it"
            )
        return strategy

    def _undone(self, plan: Plan, record: Record) -> bool:
        if not self.is_of_this_boot(record):
            return True  # a reboot undid it, and the GPU may be another claim's by now
        try:
            self._strategy(plan).undo(plan)
        except DriverError as error:
            log.warning(
                "plan not undone",
                claim=str(record.ref),
                claim_uid=record.ref.uid,
                strategy=plan.strategy,
                gpus=list(plan.gpus),
                reason=str(error),
            )
            return False
        return True

    def _spec(self, record: Record, gpus: Mapping[GpuUuid, Gpu]) -> Spec:
        """Return the claim's CDI spec as far as it does not depend on plans."""
        # The same device can stand in a claim twice, with admin access and without.
        edits = {
            claim_device_name(record.ref.uid, device.name, device.share_id): gpus[device.uuid]
            for device in record.devices
        }
        return Spec(
            kind=KIND,
            devices=tuple(
                SpecDevice(name=name, edits=self._parts.edits.gpu_edits(gpu))
                for name, gpu in edits.items()
            ),
            edits=self._parts.edits.common_edits(),
        )

    def _with_plans(self, record: Record, spec: Spec) -> Spec:
        """Apply the record's plans and add what they give to the devices they are for."""
        if not record.plans:
            return spec
        extra: dict[GpuUuid, Edits] = {}
        for plan in record.plans:
            edits = self._strategy(plan).apply(plan)
            for uuid in plan.gpus:
                extra[uuid] = extra.get(uuid, Edits()) + edits
        uuids = {
            claim_device_name(record.ref.uid, device.name, device.share_id): device.uuid
            for device in record.devices
        }
        devices = tuple(
            replace(device, edits=device.edits + extra.get(uuids[device.name], Edits()))
            for device in spec.devices
        )
        return replace(spec, devices=devices)
