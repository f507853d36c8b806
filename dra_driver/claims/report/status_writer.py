"""Writes into each claim's own status which devices it has, on a thread beside the kubelet's calls.

In: the records of claims, the GPUs, and the claims as the API server has them. Out: their
`status.devices` (claims/report/claim_status.py), by server-side apply under a field manager of its
own, so that entries of other drivers stay; by a merge where an apply is refused. No pod waits for
it: Prepare only rings, and a refusal by the API server harms no claim. What the API server already
has is not written again, even after a restart.

A failure for one claim delays only that claim: an admission policy may refuse one, a webhook may
fail for one namespace, and a right may hold in some namespaces only. All claims wait only if the
API server does not accept the driver's credentials, or fails for two claims in a row. The claim
that has waited longest is next.

What is wrong with devices is written at once. Otherwise the thread gives way to calls: it looks at
a claim, asks and writes when no call has run for a moment, or when it has waited long enough.

Entries of a claim that was unprepared are removed if it is still allocated after a while; otherwise
the API server has removed them. If the driver ends in between, they stay until the claim is
prepared again or gives its devices back.
"""

import math
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Any

import structlog
from msgspec import Struct

from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.model.record import ClaimRecord, RecordState
from dra_driver.claims.prepare.node_claims import NodeClaims
from dra_driver.claims.report.claim_status import (
    Conditions,
    Entry,
    applied,
    are_stored,
    entries,
    kept,
    key_of,
    merged,
    prepared,
    stored_entries,
)
from dra_driver.claims.state.validity import allocated, has_devices_of, stored_claim
from dra_driver.devices.model import InventorySource
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.errors import (
    AccessError,
    ApiError,
    DriverError,
    InvalidError,
    StaleError,
    UnavailableError,
)
from dra_driver.host.worker import LogOnce, Worker
from dra_driver.kube.client import KubeClient
from dra_driver.kube.resource import RESOURCE_CLAIMS
from dra_driver.kube.watch import Backoff

log = structlog.get_logger()

_REFUSED = "claim status refused"
_LATER = "claim status not written yet"

MANAGER = f"{DRIVER_NAME}/dra-driver"
"""The field manager, the same on all nodes, because a claim is on one node at a time."""

_ALLOCATION = "status.allocation"
"""The field that the API server names when it mistakes an applied status for a change of it."""

# Seconds between two looks at all records, which are read from disk.
_PERIOD = 30.0

GIVES_WAY = 5.0
"""Seconds for which a look gives way to calls in all, divided equally among its claims."""

WITHDRAW_AFTER = 10.0
"""Seconds after a claim's unprepare; by then most claims are deallocated or deleted."""

FIRST_RETRY = 1.0
_LONGEST_RETRY = 60.0
"""Seconds after a failure of the API server, for one claim or for all."""

_STALE_RETRY = 1.0
"""Seconds after somebody else changed the claim at the same time."""

REFUSED_RETRY = 600.0
"""Seconds for a claim after a refusal, since rights may be granted and policies changed later."""

_REQUEST_TIMEOUT = 10.0


class _Told(Struct, kw_only=True):
    """What is known of the status of one claim.

    `entries` are this driver's entries at the API server; None while they are not known. `due` is
    the earliest time of the next request, and `said` is the refusal that was logged last.
    """

    ref: ClaimRef
    backoff: Backoff
    entries: tuple[Entry, ...] | None = None
    due: float = 0.0
    is_gone: bool = False
    said: str = ""


class StatusWriter(Worker):
    """A thread that keeps the status of this node's claims. `clock` is monotonic, in seconds.

    `conditions` returns a device's conditions; callers ring when they change. `busy` returns for
    how many seconds calls should be left alone. `may_begin` waits up to the given seconds for what
    conditions need, and returns whether it is there; without that the writer would take back what
    its predecessor wrote. If it is not `on`, nothing is asked or written.
    """

    def __init__(  # noqa: PLR0913 (all that a status is made of)
        self,
        api: KubeClient,
        claims: NodeClaims,
        inventory: InventorySource,
        *,
        on: bool = True,
        conditions: Conditions = prepared,
        busy: Callable[[], float] = lambda: 0.0,
        may_begin: Callable[[float], bool] = lambda _seconds: True,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        super().__init__("claim-status")
        self._on = on
        self._api = api
        self._claims = claims
        self._inventory = inventory
        self._clock = clock
        self._conditions = conditions
        self._busy = busy
        self._may_begin = may_begin
        self._jitter = jitter
        self._backoff = self._new_backoff()
        self._failed_for: ClaimRef | None = None
        """The claim for which the API server failed, if it has not answered since."""
        self._told: dict[ClaimUid, _Told] = {}
        self._paused_until = -math.inf
        self._next = -math.inf
        self._is_dropped = False
        self._once = LogOnce()
        self._lock = threading.Lock()
        self._changed: set[ClaimUid] = set()
        self._is_urgent = False

    def start(self) -> None:
        """Start the thread; it looks at once."""
        if self._on:
            super().start()

    def ring(self) -> None:
        """Have the thread look at all claims at once: the health of devices has changed."""
        with self._lock:
            self._is_urgent = True
        super().ring()

    def changed(self, claims: Collection[ClaimRef]) -> None:
        """Have the thread look soon at claims that were prepared or unprepared."""
        if not self._on:
            return
        with self._lock:
            self._changed.update(ref.uid for ref in claims)
        super().ring()

    def look(self, claims: Collection[ClaimUid] | None = None) -> None:
        """Write what has changed of these claims, or of all claims, if it is time to.

        Raises StateError.
        """
        if claims is None:
            self._next = self._clock() + _PERIOD
            claims = self._claims.records.uids() | self._told.keys()
        begun, each = self._clock(), GIVES_WAY / max(1, len(claims))
        for number, uid in enumerate(sorted(sorted(claims), key=self._due), start=1):
            self._give_way(begun + number * each)
            self._look_at(uid)

    def _look_at(self, uid: ClaimUid) -> None:
        try:
            record = self._claims.records.peek(uid)
        except DriverError:
            return  # code that reads all records reports it
        told = self._told.get(uid)
        if record is None or record.state is RecordState.RELEASED:
            if told is not None:
                if not told.is_gone:
                    told.is_gone = True
                    told.due = self._clock() + WITHDRAW_AFTER
                self._attempt(told, partial(self._withdraw, uid, told))
        elif self._claims.holdings.is_prepared(record) and record.ref.name:
            if told is None:
                told = self._told[uid] = _Told(ref=record.ref, backoff=self._new_backoff())
            if told.is_gone:
                told.is_gone, told.due = False, 0.0
            wanted = entries(record, self._inventory.current(), self._conditions)
            if told.entries != wanted:
                self._attempt(told, partial(self._write, told, record, wanted))

    def _due(self, uid: ClaimUid) -> float:
        told = self._told.get(uid)
        return told.due if told else 0.0

    def _give_way(self, until: float) -> None:
        """Wait until calls leave time, unless something is urgent."""
        while (left := until - self._clock()) > 0 and not self._is_urgent:
            pause = min(left, self._busy())
            if not pause or self._stop.wait(pause):
                return

    def _new_backoff(self) -> Backoff:
        return Backoff(first=FIRST_RETRY, most=_LONGEST_RETRY, random=self._jitter)

    def _run(self) -> None:
        while not self._stop.is_set() and not self._may_begin(1.0):
            pass
        while not self._stop.is_set():
            try:
                self.look(self._to_look_at())
            except DriverError as error:
                self._next = self._clock() + _PERIOD
                self._say("claim status not written", str(error))
            self._wait(max(0.0, self._next - self._clock()))

    def _to_look_at(self) -> Collection[ClaimUid] | None:
        """Return the claims to look at; None for all."""
        with self._lock:
            changed, self._changed = self._changed, set()
            is_urgent, self._is_urgent = self._is_urgent, False
        return changed if changed and not is_urgent and self._clock() < self._next else None

    def _attempt(self, told: _Told, work: Callable[[], None]) -> None:
        """Do something for one claim if it is time to; note when to try again."""
        due = max(told.due, self._paused_until)
        if self._clock() >= due and not self._stop.is_set():
            due = self._tried(told, work)
        self._next = min(self._next, due)

    def _tried(self, told: _Told, work: Callable[[], None]) -> float:
        now = self._clock()
        try:
            work()
        except UnavailableError as error:
            least = error.retry_after or 0.0
            told.due = now + max(told.backoff.delay(), least)
            if self._failed_for in {None, told.ref}:
                self._say_of(told, _LATER, error)
            else:
                self._pause(_LATER, error, least)
            self._failed_for = told.ref
            return told.due
        except StaleError as error:
            log.debug("claim status changed meanwhile", claim=str(told.ref), reason=str(error))
            told.due = now + _STALE_RETRY
        except ApiError as error:
            if error.status == HTTPStatus.UNAUTHORIZED:
                self._pause("claim status not written", error)
                return self._paused_until
            told.due = now + REFUSED_RETRY
            if isinstance(error, AccessError) and told.said != _REFUSED:
                self._say("claim status not written", str(error))  # many may need this right
                told.said = _REFUSED
            self._say_of(told, _REFUSED, error)
        else:
            told.due, told.said = -math.inf, ""
            told.backoff.reset()
            self._once.forget()
        self._failed_for = None
        self._backoff.reset()
        return told.due if told.due > now else math.inf

    def _say_of(self, told: _Told, event: str, error: DriverError) -> None:
        """Log once why one claim's status is not written, until it is."""
        if told.said != event:
            log.warning(event, claim=str(told.ref), reason=str(error))
        told.said = event

    def _pause(self, event: str, error: DriverError, least: float = 0.0) -> None:
        """Leave all claims alone for a while, for at least `least` seconds."""
        self._paused_until = self._clock() + max(self._backoff.delay(), least)
        self._say(event, str(error))

    def _write(self, told: _Told, record: ClaimRecord, wanted: tuple[Entry, ...]) -> None:
        """Write the status of a prepared claim."""
        body = stored_claim(self._api, told.ref, timeout=_REQUEST_TIMEOUT)
        claim = allocated(body)
        if body is not None and claim is not None and has_devices_of(claim, record):
            stored = stored_entries(body)
            complete = kept(wanted, stored)
            if not are_stored(complete, stored):
                answer = self._send(applied(told.ref, complete, stored, _now()), body)
                self._look_at_dropped(is_dropped=not stored_entries(answer))
        # For a claim that is gone, or has other devices now, there is nothing to write.
        told.entries = wanted

    def _look_at_dropped(self, *, is_dropped: bool) -> None:
        if is_dropped and not self._is_dropped:
            log.warning(
                "claim status not stored",
                reason="the API server drops status.devices: its feature gate "
                "DRAResourceClaimDeviceStatus is off",
            )
        self._is_dropped = is_dropped

    def _withdraw(self, uid: ClaimUid, told: _Told) -> None:
        """Remove this driver's entries from the status of a claim that was unprepared."""
        stored = None
        if told.entries:
            stored = stored_claim(self._api, told.ref, timeout=_REQUEST_TIMEOUT)
        ours = {entry.key for entry in told.entries or ()}
        if stored is not None and any(key_of(entry) in ours for entry in stored_entries(stored)):
            # Bound to this version, because the claim may be allocated again, with new entries.
            version = str(stored["metadata"].get("resourceVersion", ""))
            self._send(applied(told.ref, (), (), _now(), version), stored)
        del self._told[uid]

    def _send(self, body: dict[str, Any], stored: Mapping[str, Any]) -> Mapping[str, Any]:
        """Apply a status to the claim that was found, or merge it if it cannot be applied."""
        name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
        try:
            return self._api.apply_status(
                RESOURCE_CLAIMS,
                name,
                body,
                namespace=namespace,
                manager=MANAGER,
                timeout=_REQUEST_TIMEOUT,
            )
        except InvalidError as error:
            if _ALLOCATION not in str(error):
                raise
        return self._api.merge_status(
            RESOURCE_CLAIMS,
            name,
            merged(body, stored),
            namespace=namespace,
            manager=MANAGER,
            timeout=_REQUEST_TIMEOUT,
        )

    def _say(self, event: str, reason: str) -> None:
        """Log once why no claim's status can be written, until something works."""
        if self._once.is_new(event):
            log.warning(event, reason=reason)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")  # noqa: TID251 (told)
