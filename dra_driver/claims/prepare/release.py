"""Takes back what a claim has when it ends, and later what could not be taken back then.

What the hardware refuses to take back is a pending cleanup: it stays in the claim's record, where
the next claim that gets the GPU finds it. claims/reconcile/reconciler.py tries it again, too. It
keeps a pod from ending (dra-driver-nvidia-gpu#1183) only if a process still uses the device, and
only for some minutes, as it may not be the pod's. Sharing is undone before the devices under it are
destroyed. A disk that cannot be written does not stop this: its records then name more than is left
to undo, and it does no harm to undo something twice.

    released -> end daemons -> undo -> unspecify -> forget

Nothing else undoes the steps of claims. Callers hold the claim's lock.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import structlog
from msgspec.structs import replace

from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.model.record import (
    ClaimRecord,
    ClaimStep,
    MakeMigDevices,
    PendingCleanup,
    RecordState,
    TurnMigModeOn,
    released,
)
from dra_driver.claims.prepare.specs import ClaimSpecs
from dra_driver.claims.prepare.steps import NO_WAIT, Steps, mig_steps, sharing_steps
from dra_driver.claims.state.ledger import Ledger
from dra_driver.claims.state.locks import NodeLocks
from dra_driver.devices.device import overlap
from dra_driver.devices.model import GpuUuid
from dra_driver.errors import DriverError, StateError, TransientError
from dra_driver.host.worker import Listeners

log = structlog.get_logger()


class Release:
    """Takes back what claims of this node have, had or left.

    `on_failed` is called with the name of each step that could not be undone, at each attempt;
    `done` after each claim that has given something back. Deadlines are values of `clock`, in
    monotonic seconds.
    """

    def __init__(
        self,
        ledger: Ledger,
        locks: NodeLocks,
        specs: ClaimSpecs,
        steps: Steps,
        clock: Callable[[], float],
        *,
        on_failed: Callable[[str], None],
    ) -> None:
        self._ledger = ledger
        self._locks = locks
        self._specs = specs
        self._steps = steps
        self._clock = clock
        self._on_failed = on_failed
        self.done: Listeners[[]] = Listeners()

    def release(
        self, record: ClaimRecord, deadline: float, *, lock_deadline: float | None = None
    ) -> tuple[PendingCleanup, ...]:
        """Take back all of a claim; return what the hardware refuses, which stays in its record.

        Raises ConflictError if another call has a GPU until the lock's deadline, and StateError on
        a read-only disk; a full one is no obstacle.
        """
        former = record.state
        if former is not RecordState.RELEASED:
            # A claim that is half undone must not count as prepared.
            self._ledger.release(record.ref.uid)
            record = released(record, time.time())  # noqa: TID251 (records tell drivers of later)
        left = self.finish(record, deadline, deadline if lock_deadline is None else lock_deadline)
        # Prepares that fail and are taken back must not make each other try again without a pause.
        if former is RecordState.PREPARED or (
            former is RecordState.RELEASED and len(left) < len(record.pending)
        ):
            self.done()
        if former is RecordState.PREPARED:
            log.info(
                "claim unprepared",
                claim=str(record.ref),
                claim_uid=record.ref.uid,
                devices=[device.name for device in record.devices],
            )
        return left

    def finish(
        self, record: ClaimRecord, deadline: float, lock_deadline: float
    ) -> tuple[PendingCleanup, ...]:
        """Do what `settle` does, and wait for daemons before that, with no GPU locked."""
        while True:
            steps = record.all_steps
            has_ended = self._steps.end(steps, deadline)  # with no GPU locked
            with self._locks.gpus(record.touched_gpus, lock_deadline):
                # The last other claim of an MPS domain may have left meanwhile, before the lock
                # or under it: then this call waits for the domain's end, too.
                if not has_ended or self._steps.end(steps, NO_WAIT):
                    left = self.settle(record, deadline)
                    is_ending = any(each.of.lives_by_itself for each in left)
                    if not (has_ended and is_ending) or self._clock() >= deadline:
                        return left
                    record = replace(record, pending=left)

    def discard(self, record: ClaimRecord, deadline: float) -> bool:
        """Release a claim if its record is still this one; tell whether it was."""
        with self._locks.claim(record.ref.uid, deadline):
            if self._ledger.read(record.ref.uid) != record:
                return False
            self.release(record, deadline)
            return True

    def forget(self, uid: ClaimUid, deadline: float) -> bool:
        """Take back what a claim without a record has left; return whether all of it is gone.

        That is a spec, and what lives by itself, such as MPS daemons, which this waits for. Raises
        StateError if its files cannot be deleted.
        """
        self._specs.delete(uid)
        self._ledger.delete(uid)
        if uid not in self._steps.claims():
            return True
        log.warning("claim without a record undone", claim_uid=uid)
        failed = self._steps.sweep(uid, deadline)
        for name, _ in failed:
            self._on_failed(name)
        return not failed

    def settle(
        self,
        record: ClaimRecord,
        deadline: float,
        *,
        gpus: Collection[GpuUuid] | None = None,
    ) -> tuple[PendingCleanup, ...]:
        """Undo what a claim no longer has, on `gpus` or all; return what is left of it.

        That is everything of a released claim, pending cleanups of a prepared one, and, after a
        reboot, what outlived it. What would change something that a claim has now is left. The
        caller holds the GPUs' locks. Raises StateError if a record with nothing left to undo cannot
        be deleted.
        """
        here = self._ledger.is_of_this_boot(record)
        now = time.time()  # noqa: TID251 (records tell drivers of later)
        lapsed = record if record.state is not RecordState.RELEASED and not here else None
        if lapsed is not None:
            self._specs.delete(record.ref.uid)
            record = released(record, now)
        # A reboot undid settings and devices, and another claim may have the GPU by now.
        owed = [known for known in record.pending if here or known.of.outlives_reboot]
        todo = [
            cleanup.of
            for cleanup in owed
            if (gpus is None or not set(cleanup.of.gpus).isdisjoint(gpus))
            and not self._is_in_use(cleanup.of, record)
        ]
        failed, tried = self._undo(todo, deadline), set(map(id, todo))
        left = tuple(
            _dated(failed.get(id(known.of), known), known.since, now)
            for known in owed
            if id(known.of) in failed or id(known.of) not in tried
        )
        if lapsed is None:
            self._say_new(record, left)
            self._shorten(record, left)
        elif lapsed.pending and not left:
            # Its steps stay: the kubelet prepares the claim again or unprepares it.
            self._rewrite(replace(lapsed, pending=()))
        return left

    def check_free(self, pending: Iterable[PendingCleanup], wanted: ClaimRecord) -> None:
        """Raise TransientError if a pending cleanup excludes the use of what a record wants.

        A setting that cannot be reset does not keep the other claim away.
        """
        for cleanup in pending:
            step = cleanup.of
            if step.excludes and overlap(step.devices, wanted.held):
                raise TransientError(
                    f"{', '.join(step.gpus)} cannot be used yet: {step.name} of an earlier "
                    f"claim has not ended ({cleanup.reason})"
                )

    def count_pending(self) -> Mapping[str, int]:
        """Return how many cleanups are pending, by name."""
        records = self._ledger.readable()
        return Counter(cleanup.of.name for record in records for cleanup in record.pending)

    def _undo(self, steps: Sequence[ClaimStep], deadline: float) -> Mapping[int, PendingCleanup]:
        """Undo steps, the latest first; return those that are left, by the step's identity.

        Sharing goes before the devices that are shared, and a device that is still shared stays.
        """
        left: dict[int, PendingCleanup] = {}
        for step, error in self._steps.undo(sharing_steps(steps), deadline):
            left[id(step)] = self._failed(step, error)
        users, devices = tuple(left.values()), mig_steps(steps)
        for step in devices:
            if (user := _user_of(step, users)) is not None:
                # The user is this driver's own daemon, not the pod's process, so it may end.
                left[id(step)] = PendingCleanup(of=step, reason=user.reason)
        free = [step for step in devices if id(step) not in left]
        for step, error in self._steps.undo(free, deadline):
            left[id(step)] = self._failed(step, error)
        return left

    def _failed(self, step: ClaimStep, error: DriverError) -> PendingCleanup:
        self._on_failed(step.name)
        may_pass = isinstance(error, TransientError)
        return PendingCleanup(of=step, reason=str(error), may_pass=may_pass)

    def _is_in_use(self, step: ClaimStep, record: ClaimRecord) -> bool:
        """Tell whether undoing a step would change something that a claim has."""
        if step.excludes or isinstance(step, TurnMigModeOn):
            return False  # no claim can have it before it is undone; the mode is not below any
        if record.state is not RecordState.RELEASED and overlap(step.devices, record.held):
            return True
        return self._ledger.holds_any(step.gpus, step.devices, but=record.ref.uid)

    def _shorten(self, record: ClaimRecord, left: tuple[PendingCleanup, ...]) -> None:
        """Reduce a record to what a claim has, and what is left to undo; delete it without any."""
        if record.state is not RecordState.RELEASED:
            if left != record.pending:
                self._rewrite(replace(record, pending=left))
            return
        self._specs.delete(record.ref.uid)
        if not left:
            self._ledger.delete(record.ref.uid)
            return
        # What is left is there in this boot, in whichever boot it was done.
        reduced = replace(record, boot_id=self._ledger.boot_id, pending=left)
        if reduced != record:
            self._rewrite(reduced)

    def _rewrite(self, record: ClaimRecord) -> None:
        """Write a record with less left to undo. If it fails, the longer record is valid too."""
        try:
            self._ledger.write(record)
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


def keeps_pod(cleanup: PendingCleanup, longest: float) -> bool:
    """Tell whether a pod has to stay until a cleanup is done: a process still uses its device.

    It need not stay for what the hardware refuses for good. It stays for at most `longest` seconds
    in all, because NVML counts any open handle as a process.
    """
    now = time.time()  # noqa: TID251 (as records have it)
    since = now if cleanup.since is None else cleanup.since
    return isinstance(cleanup.of, MakeMigDevices) and cleanup.may_pass and now - since < longest


def _dated(cleanup: PendingCleanup, since: float | None, now: float) -> PendingCleanup:
    """Return a cleanup with the time when it was first seen; the clock may have been set back."""
    return replace(cleanup, since=min(now, since or now))


def _user_of(step: ClaimStep, left: Iterable[PendingCleanup]) -> PendingCleanup | None:
    """Return the pending cleanup that still shares the devices of a step, if there is one."""
    for cleanup in left:
        if cleanup.of.excludes and overlap(cleanup.of.devices, step.devices):
            return cleanup
    return None
