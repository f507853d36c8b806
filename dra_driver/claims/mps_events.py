"""Tells a claim's users when its MPS daemon died: their CUDA programs have lost their work.

In: the supervisor's status files, looked at every few seconds. Out: a Kubernetes Event on the claim
and one on each pod that has it reserved, and a log line. The supervisor itself speaks with no API
server, so that it needs no rights there. What was told is remembered in a file beside the status
files: a driver that is restarted tells of deaths that it missed, and of none twice. A daemon that
keeps dying is told of now and then, with the number of deaths.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import structlog

from dra_driver.claims.model import Claim, ClaimRef, ClaimUid, parse_claim, uid_of
from dra_driver.claims.record import ClaimRecord
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.envelope import seal, unseal
from dra_driver.errors import ConfigError, DriverError, NotFoundError, StateError, UnavailableError
from dra_driver.kube.events import Happening, Regarding, Reporter, warning_event
from dra_driver.kube.resource import EVENTS, RESOURCE_CLAIMS, Resource
from dra_driver.mps.domain import DomainId, State, Status, claim_of
from dra_driver.mps.files import read_file, write_file

log = structlog.get_logger()

REASON = "MPSDaemonDied"
CONTROLLER = f"{DRIVER_NAME}/dra-driver"
FILE_NAME = "reported-deaths.json"


class Domains(Protocol):
    """What the supervisor says of MPS domains (mps/requests.py)."""

    def list(self) -> frozenset[DomainId]:
        """Return the domains there are."""
        ...

    def status(self, domain: DomainId) -> Status | None:
        """Return what was last said of one."""
        ...


class Records(Protocol):
    """The claims of this node (claims/checkpoint.py)."""

    def read(self, uid: ClaimUid) -> ClaimRecord | None:
        """Return a claim's record, or None."""
        ...


class ApiServer(Protocol):
    """Reads claims and takes events (kube/client.py)."""

    def get_claim(self, namespace: str, name: str, *, timeout: float) -> Mapping[str, Any]:
        """Return one ResourceClaim."""
        ...

    def create(
        self,
        resource: Resource,
        body: Mapping[str, object],
        *,
        namespace: str | None = None,
        timeout: float,
    ) -> Mapping[str, Any]:
        """Create an object."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTiming:
    """Two clocks, monotonic seconds and the time of day, and how often to do what; seconds."""

    monotonic: Callable[[], float]
    now: Callable[[], datetime]
    look: float = 2.0
    retry: float = 15.0
    """After the API server was not there."""

    quiet: float = 60.0
    """Between two events for one claim."""

    request_timeout: float = 10.0


class MpsEvents:
    """A thread that tells of MPS daemons that died."""

    def __init__(
        self,
        domains: Domains,
        records: Records,
        api: ApiServer,
        *,
        node: str,
        folder: Path,
        timing: EventTiming,
    ) -> None:
        """Take the parts it works with.

        Args:
            domains: where deaths are counted.
            records: which claim a domain belongs to.
            api: where events go.
            node: this node's name.
            folder: the MPS directory, which exists once there was a domain.
            timing: the time, and how often to look and to tell.
        """
        self._domains = domains
        self._records = records
        self._api = api
        self._reporter = Reporter(controller=CONTROLLER, instance=node)
        self._file = folder / FILE_NAME
        self._timing = timing
        self._told: dict[DomainId, int] | None = None
        self._told_at: dict[DomainId, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mps-deaths", daemon=True)

    def start(self) -> None:
        """Start the thread; it looks at once."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Tell the thread to end and wait for it, at most `timeout` seconds."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def look(self) -> None:
        """Tell of every death that was not told of yet.

        Raises:
            UnavailableError: the API server is not there; the next look tries again.
            StateError: the MPS directory cannot be read or written.
        """
        before = self._read_told() if self._told is None else self._told
        listed = sorted(self._domains.list())
        told = {domain: before.get(domain, 0) for domain in listed}
        self._told_at = {domain: at for domain, at in self._told_at.items() if domain in told}
        try:
            for domain in listed:
                status = self._domains.status(domain)
                if status is None:
                    continue
                if status.restarts > told[domain] and self._is_due(domain):
                    self._tell(domain, status)
                    self._told_at[domain] = self._timing.monotonic()
                    told[domain] = status.restarts
                elif status.state is State.READY:
                    # Fewer than before: the claim was unprepared and prepared again meanwhile.
                    told[domain] = min(told[domain], status.restarts)
        finally:
            self._told = told
            self._write_told(before)

    def _run(self) -> None:
        pause, said = 0.0, ""
        while not self._stop.wait(pause):
            pause, trouble = self._timing.look, ""
            try:
                self.look()
            except UnavailableError as error:
                pause = max(self._timing.retry, error.retry_after or 0.0)
                log.debug("death of an mps daemon not told yet", reason=str(error))
            except DriverError as error:
                pause, trouble = self._timing.retry, str(error)
                if trouble != said:
                    log.warning("mps daemons not watched", reason=trouble)
            said = trouble

    def _is_due(self, domain: DomainId) -> bool:
        at = self._told_at.get(domain)
        return at is None or self._timing.monotonic() >= at + self._timing.quiet

    def _tell(self, domain: DomainId, status: Status) -> None:
        record = self._records.read(ClaimUid(claim_of(domain)))
        if record is None:
            return  # on its way out
        log.warning("mps daemon of a claim died", claim=str(record.ref), deaths=status.restarts)
        claim = self._find_claim(record.ref)
        if claim is None:
            return
        what = Happening(
            reason=REASON,
            action="RestartingDaemon",
            note=_note(claim.ref, status),
            time=self._timing.now(),
        )
        for about in _concerned(claim):
            self._send(about, what)

    def _find_claim(self, ref: ClaimRef) -> Claim | None:
        """Return the claim with its pods as they are now; None if it is gone or has no devices."""
        try:
            found = self._api.get_claim(
                ref.namespace, ref.name, timeout=self._timing.request_timeout
            )
            return parse_claim(found, DRIVER_NAME) if uid_of(found) == ref.uid else None
        except (NotFoundError, ConfigError):
            return None

    def _send(self, about: Regarding, what: Happening) -> None:
        body = warning_event(about, what, self._reporter)
        try:
            self._api.create(
                EVENTS, body, namespace=about.namespace, timeout=self._timing.request_timeout
            )
        except UnavailableError:
            raise
        except DriverError as error:
            # The namespace is going, or the role lacks the right: no reason to tell nobody else.
            log.warning("event not sent", about=f"{about.kind} {about.name}", reason=str(error))

    def _read_told(self) -> dict[DomainId, int]:
        data = read_file(self._file)
        try:
            counts = {} if data is None else unseal(data)["deaths"]
            return {DomainId(domain): int(count) for domain, count in counts.items()}
        except (AttributeError, KeyError, TypeError, ValueError, StateError):
            return {}  # damaged: better told twice than never

    def _write_told(self, before: Mapping[DomainId, int]) -> None:
        counts = {domain: count for domain, count in (self._told or {}).items() if count}
        if counts != {domain: count for domain, count in before.items() if count}:
            write_file(self._file, seal({"deaths": counts}), durable=False)


def _note(ref: ClaimRef, status: Status) -> str:
    times = "" if status.restarts == 1 else f" (death number {status.restarts})"
    match status.state:
        case State.READY:
            after = "a new daemon serves them then"
        case State.FAILED:
            after = f"no new daemon can be started: {status.reason}"
        case _:
            after = "a new daemon is being started"
    return (
        f"the MPS daemon of claim {ref} died{times}: CUDA programs in the claim's containers have "
        f"lost their GPU contexts and fail. Restart the pods; {after}"
    )


def _concerned(claim: Claim) -> list[Regarding]:
    namespace = claim.ref.namespace
    return [
        Regarding(
            api_version=RESOURCE_CLAIMS.api_version,
            kind="ResourceClaim",
            namespace=namespace,
            name=claim.ref.name,
            uid=claim.ref.uid,
        ),
        *(
            Regarding(
                api_version="v1",
                kind="Pod",
                namespace=namespace,
                name=pod.name,
                uid=pod.uid,
            )
            for pod in claim.pods
        ),
    ]
