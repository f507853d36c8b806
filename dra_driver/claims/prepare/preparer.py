"""Prepare and unprepare: answers what the kubelet asks about a claim.

In: a claim as the kubelet names it, and how long the kubelet waits. Out: the devices with their CDI
ids, or an error for people who read the pod's events. The kubelet comes back only 60 to 90 s after
a failure. So a call waits for whatever may pass: an API server that cannot be reached, a driver
that is starting, a GPU whose former claim the kubelet is about to unprepare.

The kubelet repeats Prepare for claims that are in use (after its restart, for a new sandbox). The
answer is then the same and nothing is touched. Unprepare needs no API server, and a claim that is
not known counts as unprepared. What is done for a claim, each step between two consistent states:

    allocation -> resolve -> plan -> intend -> do -> wait -> record -> specify

If no hardware is changed, no intent is written. After a kill at any point, the next call for the
claim or claims/reconcile/reconciler.py repairs the state. claims/prepare/release.py undoes it all.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import structlog
from msgspec import Struct
from msgspec.structs import replace

from dra_driver.claims.model.claim import (
    Claim,
    ClaimRef,
    ClaimUid,
    check_uid,
    parse_claim,
    uid_of,
)
from dra_driver.claims.model.config import group_by_config
from dra_driver.claims.model.record import ClaimRecord, DeviceRecord, RecordState
from dra_driver.claims.prepare import resolve
from dra_driver.claims.prepare.allocation import (
    Allocation,
    allocation_of,
    as_recorded,
    recorded_gpus,
)
from dra_driver.claims.prepare.node_claims import NodeClaims
from dra_driver.claims.prepare.release import keeps_pod
from dra_driver.claims.prepare.specs import ClaimFiles
from dra_driver.claims.prepare.steps import NO_WAIT
from dra_driver.claims.state.divisions import Divisions
from dra_driver.claims.state.holdings import Neighbours, Rival, neighbours, owed, share_steps
from dra_driver.claims.state.validity import has_devices_of, why_gone
from dra_driver.devices.device import kind_named, overlap
from dra_driver.devices.exclusion import admitting
from dra_driver.devices.model import InventorySource
from dra_driver.devices.names import DRIVER_NAME, in_order, undivided_name
from dra_driver.errors import (
    ConfigError,
    ConflictError,
    DeviceError,
    DriverError,
    NotFoundError,
    TransientError,
    UnavailableError,
)
from dra_driver.host.turns import waiting
from dra_driver.kube.client import KubeClient
from dra_driver.sharing import time_slicing
from dra_driver.sharing.steps import PassThrough

log = structlog.get_logger()

_UNDO_SECONDS = 2.0
"""Time kept after a call's deadline, to undo what could not be completed by then."""

_LONGEST_UNDO_SECONDS = 5.0
"""The longest undo in a call that failed: hardware that hangs should not delay the reason."""

_LOGGED_PODS = 16
"""Pods that each log line of a claim names; a tenant can reserve it for 256 with long names."""


class PrepareTiming(Struct, frozen=True, kw_only=True):
    """How long a call waits for what may pass. All in seconds."""

    longest: float = 40.0
    """The kubelet ends a call after 45 s."""

    margin: float = 1.0
    """Time of the caller that is kept for the answer."""

    first_pause: float = 0.05
    longest_pause: float = 1.0

    longest_in_use: float = 300.0
    """For how long processes that use a claim's MIG device may keep its pod, over all calls."""

    read_timeout: float = 10.0
    """For one answer of the API server: if a connection is dead, the next one may work."""

    repeat_timeout: float = 2.0
    """For the API server if the answer is already known."""


class ClaimPreparer:
    """Prepares and unprepares claims. Calls may come from many threads, even for the same claim.

    `pool` is the name of this node's pool in its ResourceSlices. Deadlines are values of `clock`,
    in monotonic seconds. `on_release` is called after a claim has given something back.
    """

    def __init__(  # noqa: PLR0913 (the one place where all parts meet)
        self,
        *,
        api: KubeClient,
        inventory: InventorySource,
        claims: NodeClaims,
        divisions: Divisions,
        pool: str,
        clock: Callable[[], float],
        timing: PrepareTiming = PrepareTiming(),
    ) -> None:
        self._api = api
        self._inventory = inventory
        self._claims = claims
        self._ledger = claims.ledger
        self._release = claims.release
        self._divisions = divisions
        self._locks = claims.locks
        self._pool = pool
        self._clock = clock
        self._timing = timing
        self._changed = threading.Condition()
        self._released = 0
        self._unwanted: dict[ClaimUid, int] = {}
        self._stopping = False
        claims.release.done.add(self._wake)

    def stop(self) -> None:
        """End all waiting: calls that wait now fail, and later ones do not wait."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def prepare(self, ref: ClaimRef, *, deadline: float) -> tuple[DeviceRecord, ...]:
        """Return the claim's devices, ready for containers. Raises DriverError for pod events."""
        end = self._end(deadline)
        with self._locks.claim(ref.uid, end):
            return self._patiently(ref, end)

    def unprepare(self, ref: ClaimRef, *, deadline: float) -> None:
        """Take back what was prepared for the claim; a claim that is not prepared is fine.

        Raises ConflictError if other calls for the claim or its GPUs went on until the deadline,
        TransientError if processes still use a MIG device that was made for the claim, and
        StateError if the record cannot be deleted.
        """
        try:
            uid = check_uid(ref.uid)
        except ConfigError as error:
            log.warning("claim never prepared", claim=str(ref), reason=str(error))
            return
        end = self._end(deadline)
        self._claims.mig.given_up(uid)
        with self._wanting_no_more(uid), self._locks.claim(uid, end):
            record = self._ledger.read(uid)
            if record is None:
                self._release.forget(uid, end)
            else:
                self._release_all(record, end)

    def _release_all(self, record: ClaimRecord, end: float) -> None:
        """Release a claim, and wait for processes that still use a MIG device made for it."""
        pause = self._timing.first_pause
        while True:
            left_undone = self._release.release(record, end)
            answers = self._inventory.current().driver_version is not None
            longest = self._timing.longest_in_use
            kept = [cleanup for cleanup in left_undone if keeps_pod(cleanup, longest)]
            if not (kept and answers):
                return
            left = self._ledger.read(record.ref.uid)
            if left is None or not self._pause(min(pause, end - self._clock())):
                raise TransientError(
                    f"claim {record.ref} cannot be unprepared yet: {kept[0].reason}; the pod "
                    "stays until then, and the driver retries"
                )
            record = left
            pause = min(2 * pause, self._timing.longest_pause)

    def _pause(self, seconds: float) -> bool:
        """Wait; return False if there is no time left, or the driver is stopping."""
        with waiting(), self._changed:
            if seconds > 0:
                self._changed.wait_for(lambda: self._stopping, seconds)
            return seconds > 0 and not self._stopping

    def _wake(self) -> None:
        """Make prepares that wait for a device try again: a claim has given something back."""
        with self._changed:
            self._released += 1
            self._changed.notify_all()

    def _end(self, deadline: float) -> float:
        timing = self._timing
        return min(deadline - timing.margin, self._clock() + timing.longest)

    @contextmanager
    def _wanting_no_more(self, uid: ClaimUid) -> Iterator[None]:
        """Make a Prepare that waits for something give up, because the claim's pod is gone."""
        with self._changed:
            self._unwanted[uid] = self._unwanted.get(uid, 0) + 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._unwanted[uid] -= 1
                if not self._unwanted[uid]:
                    del self._unwanted[uid]

    def _patiently(self, ref: ClaimRef, end: float) -> tuple[DeviceRecord, ...]:
        """Repeat the attempt while it fails with an error that may pass and there is time."""
        start = self._clock()
        pause = self._timing.first_pause
        while True:
            seen = self._released
            try:
                return self._attempt(ref, end)
            except TransientError as error:
                if not self._wait(ref.uid, end, max(pause, _asked_pause(error)), seen):
                    waited = self._clock() - start
                    raise TransientError(
                        f"{error}; waited {waited:.0f} s; the kubelet tries again"
                    ) from error
                log.debug("prepare retried", claim_uid=ref.uid, reason=str(error))
                pause = min(2 * pause, self._timing.longest_pause)

    def _wait(self, uid: ClaimUid, end: float, pause: float, seen: int) -> bool:
        """Wait until a claim is released or `pause` is over; return False if waiting is useless."""
        with waiting(), self._changed:
            left = end - self._clock()
            if left <= 0 or self._is_given_up(uid):
                return False
            self._changed.wait_for(
                lambda: self._is_given_up(uid) or self._released != seen, min(pause, left)
            )
            return not self._is_given_up(uid)

    def _is_given_up(self, uid: ClaimUid) -> bool:
        """Tell whether a Prepare is useless: the claim's pod is gone, or the driver is stopping."""
        return self._stopping or uid in self._unwanted

    def _attempt(self, ref: ClaimRef, end: float) -> tuple[DeviceRecord, ...]:
        record = self._ledger.read(ref.uid)
        known = record if record and self._ledger.is_prepared(record) else None
        try:
            claim = self._read(ref, end, known)
        except DriverError as error:
            if known is None or isinstance(error, ConfigError | NotFoundError | ConflictError):
                raise
            # A sandbox may be made again while the API server is away: containers need not notice.
            log.warning("claim answered from record", claim=str(ref), reason=str(error))
            return self._again(known, end)
        if known and has_devices_of(claim, known):
            return self._again(known, end)
        return self._prepare(claim, record, end)

    def _read(self, ref: ClaimRef, end: float, known: ClaimRecord | None) -> Claim:
        longest = self._timing.repeat_timeout if known else self._timing.read_timeout
        timeout = min(max(0.1, end - self._clock()), longest)
        try:
            with waiting():
                stored = self._api.get_claim(ref.namespace, ref.name, timeout=timeout)
        except NotFoundError as error:
            raise NotFoundError(
                f"claim {ref} no longer exists; delete the pod if it does not end by itself",
                status=error.status,
            ) from error
        uid = uid_of(stored)
        if uid != ref.uid:
            raise ConflictError(
                f"claim {ref} was replaced: its UID is {uid} now, and the pod was given UID "
                f"{ref.uid}; delete the pod so that it gets the new claim"
            )
        claim = parse_claim(stored, DRIVER_NAME)
        pods = [pod.name for pod in claim.pods[:_LOGGED_PODS]]
        structlog.contextvars.bind_contextvars(pods=pods)
        if claim.groups:
            groups = [group.name for group in claim.groups[:_LOGGED_PODS]]
            structlog.contextvars.bind_contextvars(pod_groups=groups)
        return claim

    def _again(self, record: ClaimRecord, end: float) -> tuple[DeviceRecord, ...]:
        """Answer as before. The CDI spec may be missing: /var/run/cdi does not survive a reboot."""
        uid = record.ref.uid
        try:
            with self._locks.gpus(record.touched_gpus, end):
                if (remade := resolve.remake(self._claims.mig, record)) != record:
                    self._ledger.write(record := remade)
                self._claims.restore(record)
        except (DeviceError, TransientError) as error:
            # Something that containers cannot start without may be missing.
            if not self._claims.specs.files.exists(uid) or _depends_on_steps(record):
                raise
            log.warning("spec left as it was", claim=str(record.ref), reason=str(error))
        self._claims.steps.wait(record.steps, end, lambda: self._is_given_up(uid))
        return record.devices

    def _prepare(
        self, claim: Claim, former: ClaimRecord | None, end: float
    ) -> tuple[DeviceRecord, ...]:
        allocation = self._allocation(claim, former, end)
        draft = allocation.draft
        if not draft.devices:
            return ()
        try:
            with self._locks.gpus(draft.touched_gpus, end):
                uuids = {device.uuid for device in draft.held if device.uuid is not None}
                strays = self._claims.steps.claims(uuids) - {draft.ref.uid}
                others = neighbours(self._ledger, draft)
                if others.rival is None:
                    self._clear(strays, others.former, draft, end)
                    record, files = self._realise(allocation, others, end)
            if others.rival is not None:
                raise self._conflict(others.rival, end)
            # With no GPU locked, so that a wait for a daemon holds up no other user of the GPU.
            self._claims.steps.wait(record.steps, end, lambda: self._is_given_up(draft.ref.uid))
            if record.steps:
                self._ledger.write(record)
            self._claims.specs.write(files)
        except ConfigError as error:
            self._take_back(draft.ref.uid, end)
            raise ConfigError(f"{error}{self._newer_divisions(draft)}") from error
        except DriverError:
            self._take_back(draft.ref.uid, end)
            raise
        log.info("claim prepared", **_facts(record))
        return record.devices

    def _allocation(self, claim: Claim, former: ClaimRecord | None, end: float) -> Allocation:
        """Return what a claim was allocated, after what its former record says is taken back."""
        # Configs first: their authors should not have to wait for hardware to hear of a mistake.
        kinds = {result.device: kind_named(result.device) for result in claim.results}
        configs = group_by_config(claim, kinds)
        named = inventory = self._inventory.current()
        if former and former.state is not RecordState.RELEASED:
            inventory = named = admitting(inventory, set(former.held_gpus))
            if has_devices_of(claim, former):
                named = as_recorded(inventory, former)
        boot_id = self._ledger.boot_id
        allocation = allocation_of(claim, configs, self._pool, named, self._divisions, boot_id)
        if not former:
            return allocation
        # The former record is of another boot or allocation, or a crash interrupted it.
        draft = replace(allocation.draft, pending=self._release.release(former, end))
        self._release.check_free(draft.pending, draft)
        return replace(allocation, draft=draft, gpus=recorded_gpus(draft.devices, inventory))

    def _realise(
        self, allocation: Allocation, others: Neighbours, end: float
    ) -> tuple[ClaimRecord, ClaimFiles]:
        """Make a claim's devices exist and be shared as its configs say; return record and files.

        Hardware is changed only under a record that says what will be changed. The plan is made
        once, before any device is: its steps name places, and get what was made there. The record
        on disk is PREPARING if there is a step, and the caller then waits for daemons and writes it
        again. Where a record is lost, something may be set for its claim, so what is found there
        does not count as the state to restore.
        """
        draft, steps, specs = allocation.draft, self._claims.steps, self._claims.specs
        left = owed(self._ledger, draft) if others.former or draft.pending else ()
        record = resolve.resolve(self._claims.mig, draft, allocation.gpus)
        lost = map(time_slicing.of_unknown, others.lost)
        sharing = steps.plan(record, allocation.groups, (*left, *lost), end)
        record = replace(record, steps=(*record.steps, *sharing))
        # What is refused before the record is written need not be undone.
        files = None
        if record.is_complete:
            files = specs.of(record, allocation.gpus, steps.edits(record.steps))
        self._ledger.write(replace(record, state=RecordState.PREPARING) if record.steps else record)
        record = steps.realise(record, end)
        return record, files or specs.of(record, allocation.gpus, steps.edits(record.steps))

    def _newer_divisions(self, draft: ClaimRecord) -> str:
        """Return what to add to a refusal if a newer share config waits for other claims."""
        shares = [entry for entry in draft.devices if entry.device.share is not None]
        waiting = self._divisions.waiting(entry.device.gpu for entry in shares)
        late = {undivided_name(entry.name) for entry in shares if entry.device.place in waiting}
        if not late:
            return ""
        names = ", ".join(sorted(late, key=in_order))
        return f"; a newer share config takes effect on {names} once no claim uses it"

    def _take_back(self, uid: ClaimUid, end: float) -> None:
        """Undo what a failed Prepare has begun; the reconciler does the rest."""
        until = self._clock()
        if not self._is_given_up(uid):  # otherwise Unprepare, or the next start, does the rest
            until = min(end + _UNDO_SECONDS, until + _LONGEST_UNDO_SECONDS)
        try:
            record = self._ledger.read(uid)
            if record is not None and record.state is RecordState.PREPARING:
                self._release.release(record, until)
        except DriverError as error:
            log.warning("preparation not undone yet", claim_uid=uid, reason=str(error))

    def _clear(
        self, strays: Iterable[str], former: Iterable[ClaimUid], draft: ClaimRecord, end: float
    ) -> None:
        """Take back what earlier claims have left on the draft's GPUs.

        For `strays`, something still lives by itself there. Raises TransientError if something is
        left that excludes all other use of a device.
        """
        for stray in map(ClaimUid, sorted(strays)):
            # Its device is given to another claim, so a claim without a record is gone.
            if not (self._ledger.exists(stray) or self._release.forget(stray, NO_WAIT)):
                raise TransientError(
                    f"{', '.join(draft.held_gpus)} cannot be used yet: what was made there for "
                    f"claim UID {stray}, whose record is lost, has not ended"
                )
        for uid in former:
            try:
                # This does not wait: the call that holds that claim may be waiting for these GPUs.
                with self._locks.claim(uid, self._clock()):
                    record = self._ledger.read(uid)
                    if record is not None:
                        left = self._release.settle(record, end, gpus=draft.held_gpus)
                        self._release.check_free(left, draft)
            except ConflictError as error:
                if self._is_in_the_way(uid, draft):
                    raise TransientError(
                        f"a GPU is being given back: claim UID {uid}, which had it before, is "
                        "being unprepared"
                    ) from error

    def _is_in_the_way(self, uid: ClaimUid, draft: ClaimRecord) -> bool:
        """Tell whether a former claim had, or has left, something that a draft wants."""
        former = self._ledger.peek(uid)
        left = (device for step in former.all_steps for device in step.devices) if former else ()
        return former is not None and overlap([*former.held, *left], draft.held)

    def _conflict(self, rival: Rival, end: float) -> DriverError:
        """Return the error for a device that another claim holds: final, or one that may pass."""
        device, holder = rival.device, rival.holder
        reason = why_gone(self._api, holder, timeout=max(0.1, end - self._clock()))
        if reason is None and rival.other_strategy is not None:
            return ConflictError(
                f'device "{device.name}" is used by {rival.other_strategy} by claim {holder.ref} '
                f"(UID {holder.ref.uid}), and all claims that share it must use the same "
                "strategy, which the first one chose: write `sharing.strategy: "
                f"{rival.other_strategy}` in "
                "the config of this claim, or delete the pods of one of the two claims"
            )
        if reason is None:
            return ConflictError(
                f'requested device "{device.name}" is already allocated to different claim '
                f"{holder.ref} (UID {holder.ref.uid}), which is prepared on this node; delete the "
                "pods of one of the two claims"
            )
        return TransientError(
            f'device "{device.name}" is still prepared for claim {holder.ref} '
            f"(UID {holder.ref.uid}), which {reason}; it is free when the kubelet has ended that "
            "claim's containers"
        )


def _facts(record: ClaimRecord) -> dict[str, object]:
    return {
        "claim": str(record.ref),
        "claim_uid": record.ref.uid,
        "devices": [device.name for device in record.devices],
    }


def _depends_on_steps(record: ClaimRecord) -> bool:
    """Tell whether control groups limit a claim's memory, or a GPU is passed through for it."""
    if any(isinstance(step, PassThrough) for step in record.steps):
        return True
    return any(step.pod for step in share_steps(record))


def _asked_pause(error: TransientError) -> float:
    """Return the seconds that a busy API server asked to wait."""
    return (error.retry_after or 0.0) if isinstance(error, UnavailableError) else 0.0
