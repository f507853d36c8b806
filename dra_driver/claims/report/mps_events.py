"""Posts Kubernetes events when CUDA programs have lost their work under MPS.

That is when their daemon has died, or its server is in FAULT (mps/daemon/health.py).

In: the supervisor's status files, read every few seconds. Out: a log line, and an event on each
claim that has joined the domain, and on each pod that has it reserved. The driver posts the events
because the supervisor has no access to the API server. Reported deaths are kept in a file beside
the status files, so a restarted driver reports the deaths that it missed, and none twice. A daemon
that keeps dying is reported once in a while, with the number of deaths. A fault is reported once,
and again by a restarted driver if it lasts.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import structlog

from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.report.claim_events import ClaimEvents
from dra_driver.claims.state.ledger import Ledger
from dra_driver.errors import StateError, try_all
from dra_driver.host.envelope import seal, unseal
from dra_driver.kube.outbox import Outbox
from dra_driver.mps.domain import DomainId, State, Status
from dra_driver.mps.files import read_file, write_file
from dra_driver.mps.requests import DomainRequests

log = structlog.get_logger()

DEATH = "MPSDaemonDied"
FAULT = "MPSServerFault"
FILE_NAME = "reported-deaths.json"

LOOK_SECONDS, IDLE_SECONDS = 2.0, 10.0
"""Between two looks at the status files, and while there is no domain."""

BETWEEN_EVENTS = 60.0
"""Seconds between two events with the same reason for one claim."""


class MpsEvents:
    """Posts events when an MPS daemon dies, or its server is in FAULT.

    `folder` is the MPS directory.
    """

    def __init__(
        self,
        domains: DomainRequests,
        records: Ledger,
        events: ClaimEvents,
        outbox: Outbox,
        *,
        folder: Path,
        clock: Callable[[], float],
    ) -> None:
        self._domains = domains
        self._records = records
        self._events = events
        self._outbox = outbox
        self._file = folder / FILE_NAME
        self._clock = clock
        self._reported: dict[DomainId, int] | None = None
        self._faulted: set[DomainId] = set()
        self._reported_at: dict[tuple[DomainId, str], float] = {}

    def watch(self) -> None:
        """Report now, and again and again from the outbox. Raises as `report_new` does."""
        pause = IDLE_SECONDS
        try:
            # Without a daemon nothing can die: the first one's death may be reported later.
            pause = LOOK_SECONDS if self.report_new() else pause
        finally:
            self._outbox.put(("check MPS daemons",), self.watch, after=pause)

    def report_new(self) -> bool:
        """Report every death and fault not reported yet; return whether there is any domain.

        A failure for one domain does not hold up the others. Raises StateError if the MPS
        directory, or a file of a domain, cannot be read or written.
        """
        before = self._read_reported() if self._reported is None else self._reported
        listed = sorted(self._domains.list())
        reported = {domain: before.get(domain, 0) for domain in listed}
        self._faulted.intersection_update(listed)
        self._reported_at = {key: at for key, at in self._reported_at.items() if key[0] in reported}
        try:
            try_all(partial(self._report_of, domain, reported) for domain in listed)
        finally:
            self._reported = reported
            self._write_reported(before)
        return bool(listed)

    def _report_of(self, domain: DomainId, reported: dict[DomainId, int]) -> None:
        status = self._domains.status(domain)
        if status is None:
            return
        if status.restarts > reported[domain] and self._report(domain, DEATH, status):
            reported[domain] = status.restarts
        if status.state is State.READY:
            # The number falls if the claim was unprepared and prepared again meanwhile.
            reported[domain] = min(reported[domain], status.restarts)
            self._faulted.discard(domain)
        elif status.state is State.FAULTED and domain not in self._faulted:
            self._report(domain, FAULT, status)
            self._faulted.add(domain)

    def _report(self, domain: DomainId, reason: str, status: Status) -> bool:
        """Report to every claim of the domain, once in a while; return whether it is time to."""
        at = self._reported_at.get((domain, reason))
        if at is not None and self._clock() < at + BETWEEN_EVENTS:
            return False
        members = sorted(self._domains.members(domain))
        for uid in members:
            self._post(ClaimUid(uid), reason, status, len(members))
        self._reported_at[domain, reason] = self._clock()
        return True

    def _post(self, uid: ClaimUid, reason: str, status: Status, claims: int) -> None:
        try:
            record = self._records.peek(uid)
        except StateError:
            return  # damaged, or a newer version's, which reports it
        if record is None:
            return  # the claim is being unprepared
        if reason == DEATH:
            what, action = "mps daemon of a claim died", "RestartingDaemon"
            note = _note(record.ref, status, claims)
        else:
            what, action = "mps server of a claim faulted", "WaitingForClients"
            note = status.reason
        log.warning(what, claim=str(record.ref), deaths=status.restarts)
        self._events.post_on_claim(record.ref, reason=reason, action=action, note=note)

    def _read_reported(self) -> dict[DomainId, int]:
        data = read_file(self._file)
        try:
            counts = {} if data is None else unseal(data)["deaths"]
            return {DomainId(domain): int(count) for domain, count in counts.items()}
        except (AttributeError, KeyError, TypeError, ValueError, StateError):
            return {}  # if it is damaged: better reported twice than never

    def _write_reported(self, before: Mapping[DomainId, int]) -> None:
        counts = {domain: count for domain, count in (self._reported or {}).items() if count}
        if counts != {domain: count for domain, count in before.items() if count}:
            write_file(self._file, seal({"deaths": counts}), durable=False)


def _note(ref: ClaimRef, status: Status, claims: int) -> str:
    times = "" if status.restarts == 1 else f" (death number {status.restarts})"
    match status.state:
        case State.READY:
            after = "a new daemon serves them then"
        case State.FAILED:
            after = f"no new daemon can be started: {status.reason}"
        case _:
            after = "a new daemon is being started"
    others = " and others" if claims > 1 else ""
    return (
        f"the MPS daemon of claim {ref}{others} died{times}: CUDA programs in the claim's "
        f"containers have lost their GPU contexts and fail. Restart the pods; {after}"
    )
