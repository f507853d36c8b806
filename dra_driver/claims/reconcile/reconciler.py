"""Brings records, CDI specs and the API server's claims into agreement, at start and periodically.

On this node, half-done preparations are undone, and missing or outdated CDI specs are written.
Against the API server, a claim that no longer exists, was replaced, or lost its devices is
unprepared, in case the kubelet never does it (its state was lost, or the node was replaced under
its name). claims/reconcile/orphans.py handles specs without a record. A claim must have been gone
for a while, because the kubelet ends a deleted pod's containers first, and looks for leftovers
every 60 s; and nothing may run with it any more, by what the node itself says
(claims/reconcile/still_running.py). An API server that does not answer is no reason to unprepare a
claim.

Every step takes the claim's lock, as the kubelet's calls do, and gives way to them.
"""

import math
from collections.abc import Callable, Iterable

import structlog

from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.model.record import ClaimRecord, RecordState
from dra_driver.claims.prepare.node_claims import NodeClaims
from dra_driver.claims.prepare.preparer import ClaimPreparer
from dra_driver.claims.reconcile.orphans import OrphanedSpecs, ReconcileTiming
from dra_driver.claims.reconcile.still_running import StillRunning
from dra_driver.claims.state.locks import NodeLocks
from dra_driver.claims.state.records import written_at
from dra_driver.claims.state.validity import why_gone
from dra_driver.errors import ConflictError, DriverError, UnavailableError
from dra_driver.host.worker import LogOnce, Worker
from dra_driver.kube.client import KubeClient

log = structlog.get_logger()


class Reconciler(Worker):
    """A thread that reconciles prepared claims. `clock` is monotonic, in seconds.

    Methods that look raise StateError if the driver's directory or the CDI folder cannot be read.

    `running` tells whether pods still run with a claim, and `on_kept` is told of a claim that is
    kept for that, once for each reason.
    """

    def __init__(  # noqa: PLR0913 (all that it brings in line)
        self,
        *,
        api: KubeClient,
        claims: NodeClaims,
        preparer: ClaimPreparer,
        locks: NodeLocks,
        running: StillRunning,
        clock: Callable[[], float],
        timing: ReconcileTiming = ReconcileTiming(),
        on_kept: Callable[[ClaimRecord, str], None] = lambda _record, _why: None,
    ) -> None:
        super().__init__("claim-reconciler")
        self._api = api
        self._claims = claims
        self._preparer = preparer
        self._locks = locks
        self._running = running
        self._on_kept = on_kept
        self._clock = clock
        self._timing = timing
        self._orphans = OrphanedSpecs(
            api=api, claims=claims, locks=locks, running=running, clock=clock, timing=timing
        )
        self._gone_since: dict[ClaimUid, float] = {}
        self._unanswered: set[ClaimUid] = set()
        self._once, self._kept = LogOnce(), LogOnce()

    def mend(self, only: Iterable[ClaimUid] | None = None) -> set[ClaimUid]:
        """Bring records, hardware and CDI specs on this node into agreement; return what is left.

        Without `only`, that covers all claims, and then what they shared and none uses any more.
        """
        is_full = only is None
        if only is None:
            only = self._claims.leftovers.traced()
            self._tidy_modes()
        left = {uid for uid in sorted(only) if not self._done(uid, self._mend_claim)}
        if is_full and not self._stop.is_set():
            self._claims.tidy()
        return left

    def mend_unfinished(self, only: Iterable[ClaimUid] | None = None) -> set[ClaimUid]:
        """Mend claims with a record and no fitting CDI spec, and MIG modes; return the claims left.

        Either something could not be undone for them, or somebody emptied the CDI or metadata
        folder, or replaced the GPU driver's files. The kubelet does not notice that, and the
        runtime refuses their containers.
        """
        self._tidy_modes()
        specs = self._claims.specs
        uids = self._claims.records.uids()
        unfinished = (uids - specs.complete()) | (uids & specs.outdated())
        return self.mend(unfinished if only is None else unfinished.intersection(only))

    def compare(self, only: Iterable[ClaimUid] | None = None) -> set[ClaimUid]:
        """Unprepare claims that the API server no longer has; return those to ask for again."""
        why_unknown = self._running.why_unknown() if only is None else None
        if why_unknown is not None and self._once.is_new(why_unknown):
            log.warning("claims that are gone will stay prepared", reason=why_unknown)
        uids = self._claims.records.uids()
        self._gone_since = {uid: at for uid, at in self._gone_since.items() if uid in uids}
        self._unanswered &= uids
        self._kept.keep(uids)
        todo = list(uids if only is None else uids.intersection(only))
        todo.sort(key=lambda uid: (uid in self._unanswered, uid))
        left: set[ClaimUid] = set()
        in_a_row = 0
        for position, uid in enumerate(todo):
            try:
                if not self._done(uid, self._compare_claim):
                    left.add(uid)
            except UnavailableError as error:
                # It may fail for this claim only; so this one is last the next time.
                log.debug("claim not compared", claim_uid=uid, reason=str(error))
                self._unanswered.add(uid)
                left.add(uid)
                in_a_row += 1
                if in_a_row > 1:
                    return left.union(todo[position:])
            else:
                self._unanswered.discard(uid)
                in_a_row = 0
        return left

    def _run(self) -> None:
        period = self._timing.period
        rounds = [
            _Round(self._delete_halves, math.inf),
            _Round(self.mend, period),
            _Round(self.compare, period),
            _Round(self.compare_orphans, period),
            _Round(self.mend_unfinished, self._timing.retry),
        ]
        while not self._stop.is_set():
            for due_round in rounds:
                due_round.run_when_due(self._clock, self._timing.retry)
            due = min(each.due for each in rounds)
            self._stop.wait(max(0.0, due - self._clock()))

    def compare_orphans(self, only: Iterable[ClaimUid] | None = None) -> set[ClaimUid]:
        """Delete CDI specs of claims that are gone; return the claims to look at again."""
        return self._orphans.look(only)

    def _delete_halves(self, only: Iterable[ClaimUid] | None) -> set[ClaimUid]:
        """Delete files that a killed process did not finish; once is enough."""
        del only
        self._claims.leftovers.delete_halves()
        return set()

    def _done(self, uid: ClaimUid, work: Callable[[ClaimUid], bool]) -> bool:
        """Do the work for one claim, so that its failure does not affect other claims."""
        if self._stop.is_set():
            return False
        try:
            done = work(uid)
        except ConflictError:
            return False  # a call of the kubelet has its lock
        except UnavailableError:
            raise  # it is not about this claim
        except DriverError as error:
            if self._once.is_new(str(error), uid):
                log.warning("claim not reconciled", claim_uid=uid, reason=str(error))
            return False
        self._once.forget(uid)
        return done

    def _mend_claim(self, uid: ClaimUid) -> bool:
        with self._locks.claim(uid, self._clock() + self._timing.lock_timeout):
            record = self._claims.records.read(uid)
            if record is None:
                if self._claims.specs.files.exists(uid):
                    return True  # it may be in use: claims/reconcile/orphans.py
                return self._claims.leftovers.take_back(uid, self._locks, self._undo_deadline())
            if not self._claims.holdings.is_prepared(record):
                self._claims.cleanup.end(record, self._undo_deadline())
            with self._locks.gpus(record.touched_gpus, self._clock() + self._timing.lock_timeout):
                return self._mend_record(record)

    def _mend_record(self, record: ClaimRecord) -> bool:
        deadline = self._undo_deadline()
        match record.state:
            case RecordState.PREPARED if not self._claims.holdings.is_of_this_boot(record):
                # Nothing uses it. The kubelet prepares the claim again or unprepares it.
                return self._claims.cleanup.lapse(record, deadline=deadline)
            case RecordState.PREPARED:
                if not self._claims.specs.files.exists(record.ref.uid):
                    log.warning("cdi spec is gone, and written again", claim=str(record.ref))
                self._claims.transaction.restore(record)
                return not self._claims.cleanup.settle(record, deadline=deadline)
            case RecordState.RELEASED if self._claims.holdings.is_of_this_boot(record):
                return not self._claims.cleanup.settle(record, deadline=deadline)
            case RecordState.PREPARING | RecordState.RELEASED:
                log.info("preparation taken back", claim=str(record.ref), state=record.state)
                return not self._claims.cleanup.release(record, deadline=deadline)

    def _tidy_modes(self) -> None:
        """Turn off MIG modes that were turned on here and could not be turned off before."""
        for gpu in self._claims.ownership.gpus_turned_on():
            try:
                with self._locks.gpus([gpu], self._clock() + self._timing.lock_timeout):
                    self._claims.mig.tidy(gpu)
            except ConflictError:
                continue  # a call has its lock, and turns the mode off itself
            except DriverError as error:
                log.debug("mig mode not looked at", gpu=gpu, reason=str(error))

    def _undo_deadline(self) -> float:
        return self._clock() + self._timing.undo_timeout

    def _compare_claim(self, uid: ClaimUid) -> bool:
        with self._locks.claim(uid, self._clock() + self._timing.lock_timeout):
            record = self._claims.records.read(uid)
        if record is None or record.state is RecordState.RELEASED:
            return True
        reason = why_gone(self._api, record, timeout=self._timing.request_timeout)
        if reason is None:
            self._gone_since.pop(uid, None)
            self._kept.forget(uid)
            return True
        since = self._gone_since.setdefault(uid, self._clock())
        if self._clock() - since < self._timing.grace:
            return False
        records = self._claims.records
        others = (other for other in records.readable() if other.ref.uid != uid)
        written = written_at(records.directory, uid)
        if (running := self._running.why(record, others, written)) is not None:
            why = f"claim {record.ref} {reason}, but {running}"
            if self._kept.is_new(why, uid):
                log.warning("claim kept for what still runs", claim=str(record.ref), reason=why)
                self._on_kept(record, why)
            return False
        if self._preparer.discard(record, deadline=self._undo_deadline()):
            log.warning(
                "claim unprepared without the kubelet", claim=str(record.ref), reason=reason
            )
        del self._gone_since[uid]
        return True


class _Round:
    """Looks at all claims periodically, and sooner at those that were not finished."""

    def __init__(
        self, look: Callable[[Iterable[ClaimUid] | None], set[ClaimUid]], period: float
    ) -> None:
        self._look = look
        self._period = period
        self._next_full = self._next_retry = -math.inf
        self._left: set[ClaimUid] = set()
        self._once = LogOnce()

    @property
    def due(self) -> float:
        """The time of the next look, on the clock."""
        return min(self._next_full, self._next_retry)

    def run_when_due(self, clock: Callable[[], float], retry: float) -> None:
        now = clock()
        if now < self.due:
            return
        full = now >= self._next_full
        try:
            self._left = self._look(None if full else self._left)
            if full:
                self._next_full = now + self._period
            self._next_retry = now + retry if self._left else math.inf
            self._once.forget()
        except DriverError as error:
            if self._once.is_new(str(error)):
                log.warning("reconcile failed", reason=str(error))
            self._next_full = self._next_retry = now + retry
