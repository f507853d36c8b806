"""What is taken back, now or later: of a claim that ends, and of what could not be taken back then.

What hardware refuses to take back is a pending cleanup: it stays in the claim's record, and its
GPUs stay marked, so that the next caller finds it. It is tried again by
claims/reconcile/reconciler.py and by the next claim that gets the GPU, and it keeps no pod from
ending but one whose processes still use the device, and that for some minutes only: the process may
be no pod's. Sharing is undone before the devices under it are unmade. A disk on which nothing can
be written keeps nobody either: what is on it names more than is left to do, and to undo is harmless
when it is repeated.

    released -> end -> undo -> unspecify -> forget -> unmark

Callers hold the lock of the claim and of the GPUs it touches, but for `begin_release` and `end`,
which wait for daemons before.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import structlog
from msgspec.structs import replace

from dra_driver.claims.model.record import ClaimRecord, PendingCleanup, RecordState
from dra_driver.claims.model.steps import ClaimStep, MakeMigDevices, MigStep
from dra_driver.claims.prepare.specs import ClaimSpecs
from dra_driver.claims.prepare.steps import Steps, mig_steps, sharing_steps
from dra_driver.claims.state.holdings import Holdings
from dra_driver.devices.device import overlap
from dra_driver.devices.model import GpuUuid, InventorySource
from dra_driver.errors import StateError, TransientError

log = structlog.get_logger()


class Cleanup:
    """Takes back what claims of this node have, had or left.

    `on_failed` is told the name of what could not be undone, each time, and `step` that of each
    step that is done.
    """

    def __init__(
        self,
        holdings: Holdings,
        specs: ClaimSpecs,
        steps: Steps,
        inventory: InventorySource,
        *,
        on_failed: Callable[[str], None],
        step: Callable[[str], None],
    ) -> None:
        self._holdings = holdings
        self._records = holdings.records
        self._ownership = holdings.ownership
        self._specs = specs
        self._steps = steps
        self._on_failed = on_failed
        self._inventory = inventory
        self._step = step

    # What a claim has done

    def begin_release(self, record: ClaimRecord, *, deadline: float) -> bool:
        """Have a claim's daemons end before `release`; tell whether all have. Raises StateError."""
        self._note_release(record)
        return self.end(record, deadline)

    def release(self, record: ClaimRecord, *, deadline: float) -> tuple[PendingCleanup, ...]:
        """Take back everything of a claim; return what hardware refuses to, which its record keeps.

        Raises StateError, with nothing undone, on a read-only disk; a full one is no obstacle.
        """
        self._note_release(record)
        left = self._undo(record, deadline)
        self._step("undone")
        return self._forget(record, left)

    def _note_release(self, record: ClaimRecord) -> None:
        # What is half undone is not prepared, and must not be taken for that.
        if record.state is not RecordState.RELEASED:
            self._records.note_release(record.ref.uid)

    def end(self, record: ClaimRecord, deadline: float) -> bool:
        """End a record's daemons, with no GPU locked; tell whether all ended by the deadline."""
        owed = (cleanup.of for cleanup in record.pending)
        return self._steps.end([*record.steps, *owed], deadline)

    def _undo(self, record: ClaimRecord, deadline: float) -> tuple[PendingCleanup, ...]:
        """Undo all that a record names, pending cleanups too; return what could not be.

        Steps of the record go before pending ones, which may be about the same GPU and are older;
        sharing goes before the devices that are shared.
        """
        here = self._holdings.is_of_this_boot(record)
        owed = [cleanup.of for cleanup in reversed(record.pending)]
        left: tuple[PendingCleanup, ...] = ()
        for kind in (sharing_steps, mig_steps):
            # A reboot undid settings and devices, and the GPU may be another claim's by now.
            mine = [step for step in kind(record.steps) if here or step.outlives_reboot]
            left += self._undone(mine, left, deadline)
            for step in kind(owed):
                if here or step.outlives_reboot:
                    left = self._undone([step], left, deadline) + left
        return left

    def _forget(
        self, record: ClaimRecord, left: Sequence[PendingCleanup]
    ) -> tuple[PendingCleanup, ...]:
        """Reduce a released record to its pending cleanups, and delete its spec; return them.

        A record without any is deleted. Raises StateError if it cannot be.
        """
        left = self._dated(record, left)
        self._say_new(record, left)
        self._specs.delete(record.ref.uid)
        self._step("unspecified")
        if left:
            reduced = replace(
                record,
                state=RecordState.RELEASED,
                # Whatever boot it was done in, what is left of it is there in this one.
                boot_id=self._holdings.boot_id,
                steps=(),
                pending=tuple(left),
            )
            if reduced != record:
                self._rewrite(reduced)
        else:
            self._records.delete(record.ref.uid)
        self._step("forgotten")
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
        """Retry cleanups that change nothing a claim has, on `gpus` or on all; return what is left.

        Raises StateError if a record of which nothing is left cannot be deleted.
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
        """Take back what a claim has left on GPUs that another one is about to use.

        A setting that cannot be reset does not keep the other one away. Raises TransientError if
        something is there that nobody can share a GPU with, StateError if the disk refused.
        """
        if self._holdings.is_of_this_boot(record):
            left = self.settle(record, deadline=deadline, gpus=wanted.held_gpus)
        else:
            left = self._undo(record, deadline)
        self.check_free(left, wanted)

    def check_free(self, pending: Iterable[PendingCleanup], wanted: ClaimRecord) -> None:
        """Raise TransientError if a pending cleanup keeps what a record wants from being used."""
        for cleanup in pending:
            step = cleanup.of
            if step.excludes and overlap(step.devices, wanted.held):
                raise TransientError(
                    f"{', '.join(step.gpus)} cannot be used yet: {step.name} of an earlier "
                    f"claim has not ended ({cleanup.reason})"
                )

    def keeps_pod(self, cleanup: PendingCleanup, longest: float) -> bool:
        """Tell whether a pod has to stay until a cleanup is done: a process still uses its device.

        What hardware refuses for good, or cannot be asked for now, keeps nobody; and nothing keeps
        anybody for more than `longest` seconds, as NVML calls any open handle a process.
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
        """Take back what of a claim has outlived a reboot; return whether all of it is gone.

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
        """Undo steps, but none whose devices are still shared; return what is left of them.

        `left` is what could not be undone before: nothing is destroyed below its users.
        """
        users = {id(step): _user_of(step, left) for step in mig_steps(steps)}
        kept = [
            # Our own daemon, no process of the pod: no reason for the pod to stay.
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
        """Tell whether doing a cleanup would change what a claim has."""
        step = cleanup.of
        if step.excludes:
            return False  # nobody has it before it is gone
        if record.state is not RecordState.RELEASED and overlap(step.devices, record.held):
            return True
        return self._holdings.holds_any(step.gpus, step.devices, but=record.ref.uid)

    def _dated(
        self, record: ClaimRecord, left: Sequence[PendingCleanup]
    ) -> tuple[PendingCleanup, ...]:
        """Return what is left, with when each was first seen: by the record, or now."""
        now = time.time()  # noqa: TID251 (records tell drivers of later)

        def since(cleanup: PendingCleanup) -> float:
            known = [told.since for told in record.pending if told.of == cleanup.of and told.since]
            return min([now, *known])  # the node's clock may have been set back

        return tuple(replace(cleanup, since=since(cleanup)) for cleanup in left)

    def _rewrite(self, record: ClaimRecord) -> None:
        """Write a record of which less is left to undo; the longer one is right as well."""
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
    """Return what still shares the devices of a step, if anything does."""
    for cleanup in left:
        is_sharing = not isinstance(cleanup.of, MigStep)
        if is_sharing and cleanup.of.excludes and overlap(cleanup.of.devices, step.devices):
            return cleanup
    return None


def _gpus_of(left: Iterable[PendingCleanup]) -> set[GpuUuid]:
    return {uuid for cleanup in left for uuid in cleanup.of.gpus}
