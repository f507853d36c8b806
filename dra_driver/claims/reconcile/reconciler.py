"""Brings records, CDI specs and the API server's claims into agreement, at start and periodically.

On this node, half-done preparations are undone, and missing or outdated CDI specs are written.
Against the API server, a claim that no longer exists, was replaced, or lost its devices is
unprepared, in case the kubelet never does it (dra-driver-nvidia-gpu#1278), as after the loss of its
state. A claim must have been gone for a while, because the kubelet ends a deleted pod's containers
first, and looks for leftovers every 60 s; and nothing may run with it any more, by what the node
itself says (claims/reconcile/still_running.py). An API server that does not answer is no reason to
unprepare a claim.

A claim without a record can have a CDI spec, if its record was damaged, and without the spec no
container of a running pod can be restarted. So the spec goes once the kubelet has named no pod with
the claim for a while, and with it what lives by itself, such as MPS daemons.

Every step takes the claim's lock, as the kubelet's calls do, and gives way to them.
"""

import math
from collections.abc import Callable, Iterable

import structlog
from msgspec import Struct

from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.model.record import ClaimRecord, RecordState
from dra_driver.claims.prepare.node_claims import NodeClaims
from dra_driver.claims.reconcile.still_running import StillRunning
from dra_driver.claims.state.records import written_at
from dra_driver.claims.state.validity import why_gone
from dra_driver.errors import ConflictError, DriverError, UnavailableError
from dra_driver.host.worker import LogOnce, Worker
from dra_driver.kube.client import KubeClient

log = structlog.get_logger()


class ReconcileTiming(Struct, frozen=True, kw_only=True):
    """How often to look. All in seconds."""

    period: float = 600.0
    """Between two looks if nothing is left to do."""

    retry: float = 10.0
    """Between two looks at claims that could not be finished or seem to be gone, and between two
    looks for records without a CDI spec."""

    grace: float = 90.0
    """How long a claim must have been gone before it is unprepared."""

    lock_timeout: float = 1.0
    """How long to wait for a lock that a call of the kubelet has."""

    undo_timeout: float = 10.0
    """For the hardware to undo what was set for one claim."""

    request_timeout: float = 20.0
    """For one request to the API server."""


class Reconciler(Worker):
    """A thread that reconciles prepared claims. `clock` is monotonic, in seconds.

    Methods that look raise StateError if the driver's directory or the CDI folder cannot be read.

    `running` tells whether pods still run with a claim, and `on_kept` is told of a claim that is
    kept for that, once for each reason.
    """

    def __init__(
        self,
        *,
        api: KubeClient,
        claims: NodeClaims,
        running: StillRunning,
        clock: Callable[[], float],
        timing: ReconcileTiming = ReconcileTiming(),
        on_kept: Callable[[ClaimRecord, str], None] = lambda _record, _why: None,
    ) -> None:
        super().__init__("claim-reconciler")
        self._api = api
        self._claims = claims
        self._ledger, self._locks = claims.ledger, claims.locks
        self._running = running
        self._on_kept = on_kept
        self._clock = clock
        self._timing = timing
        self._gone_since: dict[ClaimUid, float] = {}
        self._unanswered: set[ClaimUid] = set()
        self._once, self._kept = LogOnce(), LogOnce()

    def mend(self, only: Iterable[ClaimUid] | None = None) -> set[ClaimUid]:
        """Bring records, hardware and CDI specs on this node into agreement; return what is left.

        Without `only`, that covers all claims of which anything is there, and then what they shared
        and none uses any more.
        """
        specs = self._claims.specs
        uids = self._ledger.uids()
        if only is None:
            specs.files.delete_leftovers()
            uids |= set(map(ClaimUid, specs.uids() | self._claims.steps.claims()))
            self._gone_since = {uid: at for uid, at in self._gone_since.items() if uid in uids}
        else:
            uids = set(only)
        left = {uid for uid in sorted(uids) if not self._done(uid, self._mend_claim)}
        if only is None and not self._stop.is_set():
            self._claims.tidy()
        return left

    def mend_unfinished(self, only: Iterable[ClaimUid] | None = None) -> set[ClaimUid]:
        """Mend claims with a record and no fitting CDI spec; return the claims left.

        Either something could not be undone for them, or somebody emptied the CDI or metadata
        folder, or replaced the GPU driver's files. The kubelet does not notice that, and the
        runtime refuses their containers.
        """
        specs = self._claims.specs
        uids = self._ledger.uids()
        unfinished = (uids - specs.complete()) | (uids & specs.outdated())
        return self.mend(unfinished if only is None else unfinished.intersection(only))

    def compare(self, only: Iterable[ClaimUid] | None = None) -> set[ClaimUid]:
        """Unprepare claims that the API server no longer has; return those to ask for again."""
        why_unknown = self._running.why_unknown() if only is None else None
        if why_unknown is not None and self._once.is_new(why_unknown):
            log.warning("claims that are gone will stay prepared", reason=why_unknown)
        uids = self._ledger.uids()
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
        rounds = [
            _Round(self.mend, self._timing.period),
            _Round(self.compare, self._timing.period),
            _Round(self.mend_unfinished, self._timing.retry),
        ]
        while not self._stop.is_set():
            for due_round in rounds:
                due_round.run_when_due(self._clock, self._timing.retry)
            due = min(each.due for each in rounds)
            self._stop.wait(max(0.0, due - self._clock()))

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
        lock_deadline = self._clock() + self._timing.lock_timeout
        deadline = self._clock() + self._timing.undo_timeout
        with self._locks.claim(uid, lock_deadline):
            record = self._ledger.read(uid)
            if record is None:
                return self._may_forget(uid) and self._claims.release.forget(uid, deadline)
            if record.state is not RecordState.PREPARED:
                if record.state is RecordState.PREPARING:
                    log.info("preparation taken back", claim=str(record.ref))
                release = self._claims.release.release
                return not release(record, deadline, lock_deadline=lock_deadline)
            if not self._ledger.is_prepared(record):  # it is of a former boot
                return not self._claims.release.finish(record, deadline, lock_deadline)
            with self._locks.gpus(record.touched_gpus, lock_deadline):
                if not self._claims.specs.files.exists(uid):
                    log.warning("cdi spec is gone, and written again", claim=str(record.ref))
                self._claims.restore(record)
                return not self._claims.release.settle(record, deadline)

    def _may_forget(self, uid: ClaimUid) -> bool:
        """Tell whether no container can need the spec of a claim without a record."""
        if not self._claims.specs.files.exists(uid):
            return True
        if (why := self._running.by_kubelet(uid)) is not None:
            self._gone_since.pop(uid, None)
            if self._once.is_new(why, uid):
                log.info("spec without a record kept", claim_uid=uid, reason=why)
            return False
        return self._is_over(uid)

    def _is_over(self, uid: ClaimUid) -> bool:
        """Tell whether a claim has been gone for long enough, and begin to count if it is new."""
        since = self._gone_since.setdefault(uid, self._clock())
        return self._clock() - since >= self._timing.grace

    def _compare_claim(self, uid: ClaimUid) -> bool:
        with self._locks.claim(uid, self._clock() + self._timing.lock_timeout):
            record = self._ledger.read(uid)
        if record is None or record.state is RecordState.RELEASED:
            return True
        reason = why_gone(self._api, record, timeout=self._timing.request_timeout)
        if reason is None:
            self._gone_since.pop(uid, None)
            self._kept.forget(uid)
            return True
        if not self._is_over(uid):
            return False
        others = (other for other in self._ledger.readable() if other.ref.uid != uid)
        written = written_at(self._ledger.directory, uid)
        if (running := self._running.why(record, others, written)) is not None:
            why = f"claim {record.ref} {reason}, but {running}"
            if self._kept.is_new(why, uid):
                log.warning("claim kept for what still runs", claim=str(record.ref), reason=why)
                self._on_kept(record, why)
            return False
        if self._claims.release.discard(record, self._clock() + self._timing.undo_timeout):
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
