"""Takes back what a claim has when it ends, and later what could not be taken back then.

What the hardware refuses to take back is a pending cleanup: it stays in the claim's record, and its
GPUs stay marked, so that the next caller finds it. claims/reconcile/reconciler.py tries it again,
and so does the next claim that gets the GPU. It keeps a pod from ending only if a process still
uses the device, and only for some minutes, as the process may not be the pod's. Sharing is undone
before the devices under it are destroyed. A disk that cannot be written does not stop this: its
records then name more than is left to undo, and it does no harm to undo something twice.

    released -> end -> undo -> unspecify -> forget -> unmark

Callers hold the locks of the claim and of the GPUs it touches. Before that, `begin_release` and
`end` wait for daemons without the GPUs' locks.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import structlog
from msgspec.structs import replace

from dra_driver.claims.model.record import (
    ClaimRecord,
    ClaimStep,
    MakeMigDevices,
    MigStep,
    PendingCleanup,
    RecordState,
)
from dra_driver.claims.prepare.specs import ClaimSpecs
from dra_driver.claims.prepare.steps import Steps, mig_steps, sharing_steps
from dra_driver.claims.state.holdings import Holdings
from dra_driver.devices.device import overlap
from dra_driver.devices.model import GpuUuid, InventorySource
from dra_driver.errors import StateError, TransientError

log = structlog.get_logger()


class Cleanup:
    """Takes back what claims of this node have, had or left.

    `on_failed` is called with the name of each step that could not be undone, at each attempt, and
    `step` with the name of each step that is done.
    """

    def __init__(
        self,
        holdings: Holdings,
        specs: ClaimSpecs,
        steps: Steps,
        inventory: InventorySource,
        *,
        on_failed: Callable[[str], None],
    ) -> None:
        self._holdings = holdings
        self._records = holdings.records
        self._ownership = holdings.ownership
        self._specs = specs
        self._steps = steps
        self._on_failed = on_failed
        self._inventory = inventory

    # What a claim has done

    def begin_release(self, record: ClaimRecord, *, deadline: float) -> bool:
        """End a claim's daemons before `release`; tell whether all ended. Raises StateError."""
        self._note_release(record)
        return self.end(record, deadline)

    def release(self, record: ClaimRecord, *, deadline: float) -> tuple[PendingCleanup, ...]:
        """Take back all of a claim; return what the hardware refuses, which stays in its record.

        Raises StateError, with nothing undone, on a read-only disk; a full one is no obstacle.
        """
        self._note_release(record)
        left = self._undo(record, deadline)
        return self._forget(record, left)

    def _note_release(self, record: ClaimRecord) -> None:
        # A claim that is half undone must not count as prepared.
        if record.state is not RecordState.RELEASED:
            self._records.note_release(record.ref.uid)

    def end(self, record: ClaimRecord, deadline: float) -> bool:
        """End a record's daemons, with no GPU locked; tell whether all ended by the deadline."""
        owed = (cleanup.of for cleanup in record.pending)
        return self._steps.end([*record.steps, *owed], deadline)

    def _undo(self, record: ClaimRecord, deadline: float) -> tuple[PendingCleanup, ...]:
        """Undo all steps in a record, pending ones too; return those that could not be undone.

        The record's own steps go before pending ones, which are older and may be about the same
        GPU. Sharing goes before the devices that are shared.
        """
        here = self._holdings.is_of_this_boot(record)
        owed = [cleanup.of for cleanup in reversed(record.pending)]
        left: tuple[PendingCleanup, ...] = ()
        for kind in (sharing_steps, mig_steps):
            # A reboot undid settings and devices, and another claim may have the GPU by now.
            mine = [step for step in kind(record.steps) if here or step.outlives_reboot]
            left += self._undone(mine, left, deadline)
            for step in kind(owed):
                if here or step.outlives_reboot:
                    left = self._undone([step], left, deadline) + left
        return left

    def _forget(
        self, record: ClaimRecord, left: Sequence[PendingCleanup]
    ) -> tuple[PendingCleanup, ...]:
        """Delete a released record's spec, and reduce the record to pending cleanups; return them.

        A record without any is deleted. Raises StateError if it cannot be deleted.
        """
        left = self._dated(record, left)
        self._say_new(record, left)
        self._specs.delete(record.ref.uid)
        if left:
            reduced = replace(
                record,
                state=RecordState.RELEASED,
                # What is left is there in this boot, in whichever boot it was done.
                boot_id=self._holdings.boot_id,
                steps=(),
                pending=tuple(left),
            )
            if reduced != record:
                self._rewrite(reduced)
        else:
            self._records.delete(record.ref.uid)
        self._unmark(record, keep=_gpus_of(left))
        return left

    # Pending cleanups

    def settle(
        self,
        record: ClaimRecord,
        *,
        deadline: float,
        gpus: Collection[GpuUuid] | None = None,
    ) -> tuple[PendingCleanup, ...]:
        """Retry cleanups on `gpus`, or all, that change nothing a claim has; return what is left.

        Raises StateError if a record with nothing left to undo cannot be deleted.
        """
        todo = [
            cleanup
            for cleanup in record.pending
            if not self._is_in_use(cleanup, record)
            and (gpus is None or not set(cleanup.of.gpus).isdisjoint(gpus))
        ]
        steps = [cleanup.of for cleanup in todo]
        again = self._undone(sharing_steps(steps), (), deadline)
        again += self._undone(mig_steps(steps), again, deadline)
        left = tuple(cleanup for cleanup in record.pending if cleanup not in todo) + again
        if record.state is RecordState.RELEASED:
            return self._forget(record, left)
        left = self._dated(record, left)
        if left != record.pending:
            self._rewrite(replace(record, pending=left))
            self._unmark(record, keep={*record.held_gpus, *_gpus_of(left)})
        return left

    def vacate(self, record: ClaimRecord, wanted: ClaimRecord, *, deadline: float) -> None:
        """Take back what a claim has left on GPUs that another claim is about to use.

        A setting that cannot be reset does not keep the other claim away. Raises TransientError if
        something is left that excludes all other use of a GPU, StateError if the disk refused.
        """
        if self._holdings.is_of_this_boot(record):
            left = self.settle(record, deadline=deadline, gpus=wanted.held_gpus)
        else:
            left = self._undo(record, deadline)
        self.check_free(left, wanted)

    def check_free(self, pending: Iterable[PendingCleanup], wanted: ClaimRecord) -> None:
        """Raise TransientError if a pending cleanup excludes the use of what a record wants."""
        for cleanup in pending:
            step = cleanup.of
            if step.excludes and overlap(step.devices, wanted.held):
                raise TransientError(
                    f"{', '.join(step.gpus)} cannot be used yet: {step.name} of an earlier "
                    f"claim has not ended ({cleanup.reason})"
                )

    def keeps_pod(self, cleanup: PendingCleanup, longest: float) -> bool:
        """Tell whether a pod has to stay until a cleanup is done: a process still uses its device.

        It need not stay for what the hardware refuses for good or cannot be asked for now. It stays
        for at most `longest` seconds in all, because NVML counts any open handle as a process.
        """
        if not isinstance(cleanup.of, MakeMigDevices):
            return False
        is_there = self._inventory.current().driver_version is not None
        now = time.time()  # noqa: TID251 (as records have it)
        since = now if cleanup.since is None else cleanup.since
        return cleanup.may_pass and is_there and now - since < longest

    def count_pending(self) -> Mapping[str, int]:
        """Return how many cleanups are pending, by name."""
        records = self._records.readable()
        return Counter(cleanup.of.name for record in records for cleanup in record.pending)

    def lapse(self, record: ClaimRecord, *, deadline: float) -> bool:
        """Take back what outlived a reboot of a claim; return whether all of it is gone.

        The record stays: the kubelet prepares the claim again or unprepares it.
        """
        self._specs.delete(record.ref.uid)
        if self._undo(record, deadline):
            return False
        if record.pending:
            self._rewrite(replace(record, pending=()))
            self._unmark(record, keep=record.held_gpus)
        return True

    # Steps

    def _undone(
        self, steps: Sequence[ClaimStep], left: Sequence[PendingCleanup], deadline: float
    ) -> tuple[PendingCleanup, ...]:
        """Undo steps except those whose devices are still shared; return those that are left.

        `left` are the steps that could not be undone before; devices that these use stay.
        """
        users = {id(step): _user_of(step, left) for step in mig_steps(steps)}
        kept = [
            # The user is this driver's own daemon, not the pod's process, so the pod need not stay.
            PendingCleanup(of=step, reason=user.reason)
            for step in steps
            if (user := users.get(id(step))) is not None
        ]
        failed = self._steps.undo([known for known in steps if not users.get(id(known))], deadline)
        for step, _ in failed:
            self._on_failed(step.name)
        return (
            *kept,
            *(
                PendingCleanup(
                    of=step, reason=str(error), may_pass=isinstance(error, TransientError)
                )
                for step, error in failed
            ),
        )

    def _is_in_use(self, cleanup: PendingCleanup, record: ClaimRecord) -> bool:
        """Tell whether doing a cleanup would change something that a claim has."""
        step = cleanup.of
        if step.excludes:
            return False  # no claim can have it before it is undone
        if record.state is not RecordState.RELEASED and overlap(step.devices, record.held):
            return True
        return self._holdings.holds_any(step.gpus, step.devices, but=record.ref.uid)

    def _dated(
        self, record: ClaimRecord, left: Sequence[PendingCleanup]
    ) -> tuple[PendingCleanup, ...]:
        """Return the cleanups with the time when each was first seen: as in the record, or now."""
        now = time.time()  # noqa: TID251 (records tell drivers of later)

        def since(cleanup: PendingCleanup) -> float:
            known = [told.since for told in record.pending if told.of == cleanup.of and told.since]
            return min([now, *known])  # the node's clock may have been set back

        return tuple(replace(cleanup, since=since(cleanup)) for cleanup in left)

    def _rewrite(self, record: ClaimRecord) -> None:
        """Write a record with less left to undo. If it fails, the longer record is valid too."""
        try:
            self._records.write(record)
        except StateError as error:
            log.warning("record not shortened", claim=str(record.ref), reason=str(error))

    def _say_new(self, record: ClaimRecord, left: Sequence[PendingCleanup]) -> None:
        known = {(told.of.name, told.of.gpus, told.reason) for told in record.pending}
        for cleanup in left:
            if (cleanup.of.name, cleanup.of.gpus, cleanup.reason) not in known:
                log.warning(
                    "step not undone",
                    claim=str(record.ref),
                    claim_uid=record.ref.uid,
                    strategy=cleanup.of.name,
                    gpus=list(cleanup.of.gpus),
                    reason=cleanup.reason,
                )

    def _unmark(self, record: ClaimRecord, *, keep: Collection[GpuUuid]) -> None:
        for uuid in record.touched_gpus:
            if uuid not in keep:
                self._ownership.unmark(uuid, record.ref.uid)


def _user_of(step: ClaimStep, left: Iterable[PendingCleanup]) -> PendingCleanup | None:
    """Return the pending cleanup that still shares the devices of a step, if there is one."""
    for cleanup in left:
        is_sharing = not isinstance(cleanup.of, MigStep)
        if is_sharing and cleanup.of.excludes and overlap(cleanup.of.devices, step.devices):
            return cleanup
    return None


def _gpus_of(left: Iterable[PendingCleanup]) -> set[GpuUuid]:
    return {uuid for cleanup in left for uuid in cleanup.of.gpus}
