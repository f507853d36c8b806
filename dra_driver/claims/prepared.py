"""The claims prepared on this node: record, mark, hardware and CDI spec of each, kept as one.

Each method is a step between two consistent states, and a kill at any point in it is repaired by
the next call for the claim or by claims/reconcile.py. The order is always: mark the GPUs, write
down what will be changed, change it, write down that it is done, write the CDI spec; and back:
undo, delete spec, record, marks. Where no hardware is changed the first record is left out. MIG
devices are made before sharing is planned for them, so that is written down twice.

What hardware refuses to take back is a pending cleanup: it stays in the record, and its GPUs stay
marked, so
that whoever comes to them finds it. CDI specs are derived from records. Nothing here asks the API
server or takes a lock: callers hold the lock of the claim and of the GPUs it touches.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from dra_driver.cdi.model import Spec
from dra_driver.cdi.spec import claim_device_id
from dra_driver.claims.checkpoint import RecordStore
from dra_driver.claims.config import ConfigGroup
from dra_driver.claims.gpus import Allocated, recorded_gpus
from dra_driver.claims.holders import GpuHolders
from dra_driver.claims.made import MadeHere
from dra_driver.claims.mig import MIG, ClaimedMig, mig_record
from dra_driver.claims.model import Claim, ClaimUid
from dra_driver.claims.plans import Strategies
from dra_driver.claims.ports import EditsSource, InventorySource, MigDevices, SpecFiles
from dra_driver.claims.record import ClaimRecord, DeviceRecord, PendingCleanup, RecordState
from dra_driver.claims.specs import claim_spec, units, units_to_be
from dra_driver.devices.model import GpuUuid
from dra_driver.errors import DriverError, TransientError
from dra_driver.sharing.base import Plan, Sharing, overlap

log = structlog.get_logger()

UNDO_SECONDS = 2.0
"""What is kept, after a call's deadline, to take back what could not be done by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """What preparing is made of on this node."""

    inventory: InventorySource
    edits: EditsSource
    specs: SpecFiles
    strategies: Mapping[str, Sharing]
    mig: MigDevices
    on_failed_undo: Callable[[str], None] = lambda _: None


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
        self.made = MadeHere(directory, boot_id)
        self.mig = ClaimedMig(parts.mig, self.made, parts.inventory)
        self._parts = parts
        self._strategies = Strategies(parts.strategies, parts.on_failed_undo, self.mig)
        self._boot_id = boot_id
        self._step = step

    def holds(self, record: ClaimRecord) -> bool:
        """Tell whether the record keeps others from its GPUs; after a reboot nothing uses them."""
        return self.is_of_this_boot(record) and record.state is not RecordState.RELEASED

    def is_of_this_boot(self, record: ClaimRecord) -> bool:
        """Tell whether what the record says of hardware can still be true."""
        return record.boot_id == self._boot_id

    def is_prepared(self, record: ClaimRecord) -> bool:
        """Tell whether the claim is prepared, and in this boot."""
        return self.is_of_this_boot(record) and record.state is RecordState.PREPARED

    def neighbours(
        self, record: ClaimRecord
    ) -> tuple[tuple[DeviceRecord, ClaimRecord] | None, set[ClaimUid]]:
        """Return who holds some of what the record wants, and who left something on its GPUs.

        The first is another claim's record with the device that both want, None when all is free;
        the second are claims that may have left something. The cost depends on how many claims
        have to do with these GPUs, not on how many there are.
        """
        others = {uuid: self._others(uuid, record.ref.uid) for uuid in record.held_gpus}
        for device in record.devices:
            if not device.admin_access:
                for other in others[device.uuid]:
                    if self.holds(other) and overlap([device.part], other.held_parts):
                        return (device, other), set()
        former = {
            other.ref.uid
            for found in others.values()
            for other in found
            if not self.holds(other) or other.pending
        }
        return None, former

    def vacate(self, uid: ClaimUid, wanted: ClaimRecord, *, deadline: float) -> None:
        """Take back what a claim has left on GPUs that another one is about to use.

        A setting that cannot be reset does not keep the other one away.

        Raises:
            TransientError: something is there that nobody can share a GPU with.
            StateError: the disk refused.
        """
        record = self.records.read(uid)
        if record is None:
            return
        if self.is_of_this_boot(record):
            left = self.settle(record, deadline=deadline, gpus=wanted.held_gpus)
        else:
            left = self._lapse_plans(record, deadline)
        self.check_free(left, wanted)

    def check_free(self, cleanups: Sequence[PendingCleanup], wanted: ClaimRecord) -> None:
        """Check that no cleanup keeps what a record wants from being used.

        Raises:
            TransientError: one does.
        """
        for cleanup in cleanups:
            if self._strategies.excludes(cleanup.plan, wanted.held_parts):
                raise TransientError(
                    f"{', '.join(cleanup.plan.gpus)} cannot be used yet: {cleanup.plan.strategy} "
                    f"of an earlier claim has not ended ({cleanup.reason})"
                )

    def keeps_pod(self, cleanup: PendingCleanup) -> bool:
        """Tell whether a pod has to stay until a cleanup is paid: a process still uses its device.

        What hardware refuses for good, or cannot be asked for now, keeps nobody.
        """
        return (
            cleanup.may_pass
            and cleanup.plan.strategy == MIG
            and self._strategies.is_exclusive(cleanup.plan)
            and self._parts.inventory.current().driver_version is not None
        )

    def draft(self, claim: Claim, allocated: Mapping[str, Allocated]) -> ClaimRecord:
        """Return the record the claim will have, without plans; `allocated` is by device name."""
        return ClaimRecord(
            ref=claim.ref,
            boot_id=self._boot_id,
            state=RecordState.PREPARED,
            devices=tuple(
                DeviceRecord(
                    name=result.device,
                    uuid=allocated[result.device].gpu.uuid,
                    pool=result.pool,
                    request_names=(result.base_request,),
                    cdi_device_ids=(
                        claim_device_id(claim.ref.uid, result.device, result.share_id),
                    ),
                    admin_access=result.admin_access,
                    share_id=result.share_id,
                    mig=mig_record(allocated[result.device].partition),
                )
                for result in claim.results
            ),
            pods=claim.pods,
        )

    def planned(
        self,
        draft: ClaimRecord,
        allocated: Mapping[str, Allocated],
        groups: Sequence[ConfigGroup],
        *,
        deadline: float,
    ) -> ClaimRecord:
        """Return a draft with what is there of its devices, and with plans for what is to be done.

        Sharing of MIG devices that have to be made is only tried out: a wrong config should be
        heard of before anything is made. Nothing is changed yet.

        Raises:
            ConfigError: a config asks for what these devices or this driver cannot do.
            DeviceError, TransientError: a GPU does not say how it is set or what it can do, or a
                device is not there.
        """
        uid = draft.ref.uid
        self._take_orphans_away(draft)
        draft = self.mig.resolved(draft, allocated)
        sharing = self._strategies.plan(uid, groups, units_to_be(draft, allocated), deadline)
        if draft.is_to_be_made:
            return draft
        return replace(draft, plans=draft.plans + sharing)

    def commit(
        self, record: ClaimRecord, groups: Sequence[ConfigGroup], *, deadline: float
    ) -> ClaimRecord:
        """Make a planned record come true; return it as it is then.

        Raises:
            ConfigError, DeviceError, TransientError: the hardware refused, or takes longer than
                until the deadline; what was changed has been undone, or is a cleanup.
            StateError: the disk refused; the next call for the claim finishes or undoes it.
        """
        # First what can fail without leaving anything behind.
        gpus = recorded_gpus(record.devices, self._parts.inventory.current())
        spec = None if record.is_to_be_made else self._spec(record)
        for uuid in record.held_gpus:
            self._holders.add(uuid, record.ref.uid)
        self._step("marked")
        if record.plans:
            self._intend(record)
            try:
                if spec is None:
                    self._strategies.apply(record.plans, deadline)
                    self._step("made")
                    made, record = len(record.plans), self.mig.filled(record)
                    sharing = self._strategies.plan(
                        record.ref.uid, groups, units(record, gpus), deadline
                    )
                    record = replace(record, plans=record.plans + sharing)
                    if sharing:
                        self._intend(record)
                    self._strategies.apply(record.plans[made:], deadline)
                    spec = self._spec(record)
                else:
                    self._strategies.apply(record.plans, deadline)
            except DriverError:
                self.release(record, deadline=deadline + UNDO_SECONDS)
                raise
            self._step("applied")
        self.records.write(record)
        self._step("recorded")
        self._parts.specs.write(record.ref.uid, spec or self._spec(record))
        self._step("specified")
        return record

    def mend(self, record: ClaimRecord) -> ClaimRecord:
        """Return the record of a prepared claim whose MIG devices are there; lost ones are made.

        Raises:
            DeviceError, TransientError: one cannot be.
            StateError: the disk refused.
        """
        mended = self.mig.mended(record)
        if mended != record:
            self.records.write(mended)
        return mended

    def restore(self, record: ClaimRecord) -> None:
        """Bring marks and CDI spec of a prepared claim in line with its record.

        Raises:
            DeviceError, TransientError: a GPU of the claim is not there.
            StateError: the disk refused.
        """
        for uuid in record.touched_gpus:
            self._holders.add(uuid, record.ref.uid)
        self._strategies.ensure(record.plans, None)
        self._parts.specs.write(record.ref.uid, self._spec(record))

    def wait_ready(self, record: ClaimRecord, *, deadline: float) -> None:
        """Wait until containers can be started with what was applied for a prepared claim.

        Raises:
            DeviceError, TransientError: they cannot by the deadline.
        """
        self._strategies.ensure(record.plans, deadline)

    def release(self, record: ClaimRecord, *, deadline: float) -> tuple[PendingCleanup, ...]:
        """Take back everything of a claim; return what hardware refuses to take back.

        That stays in a record of its own and is tried again, by `claims/reconcile.py` and by the
        next claim that gets the GPU; it does not keep the claim's pod from ending.

        Raises:
            StateError: the record cannot be deleted.
        """
        plans = self._undoable(record.plans, record)
        if record.state is RecordState.PREPARED and any(plan.strategy == MIG for plan in plans):
            # Half destroyed, a device is none: a driver that starts then must not take it for one.
            self.records.write(replace(record, state=RecordState.PREPARING))
        left = self._strategies.undo(plans, deadline)
        # After the plans: a cleanup may be about the same GPU, and its setting is the older one.
        # A MIG device after what is on it.
        latest_first = record.pending[::-1]
        for cleanup in sorted(latest_first, key=lambda cleanup: cleanup.plan.strategy == MIG):
            plans = self._undoable([cleanup.plan], record)
            left = self._strategies.undo(plans, deadline, left) + left
        self._step("undone")
        self.delete_spec(record.ref.uid)
        self._step("unspecified")
        self._forget(record, left)
        return left

    def settle(
        self, record: ClaimRecord, *, deadline: float, gpus: Collection[GpuUuid] | None = None
    ) -> tuple[PendingCleanup, ...]:
        """Try again what could not be undone, on some GPUs or on all that nobody uses.

        Returns what is left.

        Raises:
            StateError: the disk refused.
        """
        todo = [
            cleanup
            for cleanup in record.pending
            if (not self._is_in_use(cleanup, record))
            and (gpus is None or not set(cleanup.plan.gpus).isdisjoint(gpus))
        ]
        again = self._strategies.undo([cleanup.plan for cleanup in todo], deadline)
        left = tuple(cleanup for cleanup in record.pending if cleanup not in todo) + again
        if record.state is RecordState.RELEASED:
            self._forget(record, left)
        elif left != record.pending:
            self.records.write(replace(record, pending=left))
            self._unmark(record, keep={*record.held_gpus, *_gpus_of(left)})
        return left

    def lapse(self, record: ClaimRecord, *, deadline: float) -> bool:
        """Take back what has outlived a reboot of a claim that was prepared before it.

        The record stays: the kubelet prepares the claim anew or unprepares it. Returns whether
        all of it is gone.
        """
        self.delete_spec(record.ref.uid)
        if self._lapse_plans(record, deadline):
            return False
        if record.pending:
            self.records.write(replace(record, pending=()))
            self._unmark(record, keep=record.held_gpus)
        return True

    def left_on(self, uid: ClaimUid) -> set[GpuUuid]:
        """Return the GPUs that have to be locked for `sweep`."""
        return {gpu for plan in self._strategies.leftovers().get(uid, []) for gpu in plan.gpus}

    def sweep(self, uid: ClaimUid, *, deadline: float) -> bool:
        """Take back what is there for a claim that has no record; return whether all of it is."""
        plans = self._strategies.leftovers().get(uid, [])
        if plans:
            log.warning("claim without a record taken back", claim_uid=uid)
        return not self._strategies.undo(plans, deadline)

    def forget(self, uid: ClaimUid) -> None:
        """Delete what files a claim has on disk that has no whole record.

        Raises:
            StateError: the disk refused.
        """
        self.delete_spec(uid)
        self.records.delete(uid)
        self._holders.forget(uid)

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
        """Delete what a killed process was writing into the CDI folder, and notes of old boots."""
        self._parts.specs.delete_leftovers()
        self.made.forget_other_boots()

    def traced(self) -> set[ClaimUid]:
        """Return the claims that have a CDI spec, a mark, or something that lives by itself."""
        traces = self._parts.specs.uids() | set(self._strategies.leftovers())
        return self._holders.uids().union(map(ClaimUid, traces))

    def count_cleanups(self) -> Mapping[str, int]:
        """Return how many plans wait to be undone, by strategy."""
        found = (self.records.read(uid) for uid in self.records.uids())
        return Counter(
            cleanup.plan.strategy for record in found if record for cleanup in record.pending
        )

    def _others(self, gpu: GpuUuid, uid: ClaimUid) -> list[ClaimRecord]:
        """Return the records of other claims with a mark on the GPU."""
        found = []
        for other in self._holders.of(gpu):
            if other != uid:
                record = self.records.read(other)
                if record is not None:
                    found.append(record)
                else:
                    self._holders.remove(gpu, other)  # left by a crash
        return found

    def _is_in_use(self, cleanup: PendingCleanup, record: ClaimRecord) -> bool:
        """Tell whether undoing a cleanup would change what a claim has."""
        if self._strategies.is_exclusive(cleanup.plan):
            return False  # nobody has it before it is gone
        parts = cleanup.plan.parts
        if record.state is not RecordState.RELEASED and overlap(parts, record.held_parts):
            return True
        return any(
            self.holds(other) and overlap(parts, other.held_parts)
            for uuid in cleanup.plan.gpus
            for other in self._others(uuid, record.ref.uid)
        )

    def _undoable(self, plans: Sequence[Plan], record: ClaimRecord) -> list[Plan]:
        """Return the plans of which something can still be there, the latest first.

        A reboot undid settings, and the GPU may be another claim's by now.
        """
        here = self.is_of_this_boot(record)
        return [plan for plan in reversed(plans) if here or self._strategies.survives_reboot(plan)]

    def _lapse_plans(self, record: ClaimRecord, deadline: float) -> tuple[PendingCleanup, ...]:
        plans = (*record.plans, *(cleanup.plan for cleanup in record.pending))
        return self._strategies.undo(self._undoable(plans, record), deadline)

    def _forget(self, record: ClaimRecord, cleanups: tuple[PendingCleanup, ...]) -> None:
        """Reduce a record to its cleanups; one without any goes."""
        uid = record.ref.uid
        known = {
            (cleanup.plan.strategy, cleanup.plan.gpus, cleanup.reason) for cleanup in record.pending
        }
        for cleanup in cleanups:
            plan = cleanup.plan
            if (plan.strategy, plan.gpus, cleanup.reason) not in known:
                log.warning(
                    "plan not undone",
                    claim=str(record.ref),
                    claim_uid=uid,
                    strategy=plan.strategy,
                    gpus=list(plan.gpus),
                    reason=cleanup.reason,
                )
        if cleanups:
            # Whatever boot the plans were of, what is left of them is there in this one.
            left = replace(
                record,
                state=RecordState.RELEASED,
                boot_id=self._boot_id,
                plans=(),
                pending=cleanups,
            )
            if left != record:
                self.records.write(left)
        else:
            self.records.delete(uid)
        self._step("forgotten")
        self._unmark(record, keep=_gpus_of(cleanups))

    def _unmark(self, record: ClaimRecord, *, keep: Collection[GpuUuid]) -> None:
        for uuid in record.touched_gpus:
            if uuid not in keep:
                self._holders.remove(uuid, record.ref.uid)

    def _intend(self, record: ClaimRecord) -> None:
        self.records.write(replace(record, state=RecordState.PREPARING))
        self._step("intended")

    def _take_orphans_away(self, draft: ClaimRecord) -> None:
        """Destroy what was made where the draft wants something, for claims without a record."""
        orphans = self.mig.orphans(draft.held_parts)
        lost = {
            slot: uid
            for slot, uid in orphans.items()
            if uid != draft.ref.uid and self.records.read(uid) is None
        }
        self.mig.take_away(lost)

    def _spec(self, record: ClaimRecord) -> Spec:
        gpus = recorded_gpus(record.devices, self._parts.inventory.current())
        extra = self._strategies.edits(record.plans)
        return claim_spec(record, gpus, self._parts.edits.look(), extra)


def _gpus_of(cleanups: Sequence[PendingCleanup]) -> set[GpuUuid]:
    return {uuid for cleanup in cleanups for uuid in cleanup.plan.gpus}
