"""The supervisor: watches what the driver requests, and runs one worker for each MPS domain.

Claims need no Deployment each (dra-driver-nvidia-gpu#362). Only one supervisor serves a
directory at a time; a second one waits for the lock, which makes a rolling update safe. If a
supervisor stops or is killed, its daemons keep running, and the next supervisor adopts them.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import structlog

from dra_driver.errors import StateError, VersionError
from dra_driver.host.files import Look, is_of_the_disk, look_of
from dra_driver.host.inotify import FolderWatch
from dra_driver.host.ofd_lock import NamedLock, holder_of
from dra_driver.host.worker import LogOnce, Worker
from dra_driver.mps.daemon.health import WorkerTiming
from dra_driver.mps.domain import Domain, DomainId, State, decode_domain, is_id
from dra_driver.mps.files import ids_in, names_in, read_file
from dra_driver.mps.supervisor.domain_worker import Desired, DomainWorker, Unreadable
from dra_driver.mps.supervisor.lifecycle import SupervisorContext, read_record

log = structlog.get_logger()

_LOOK_SECONDS = 2.0  # even without an event, because some file systems do not send every event
_LOCK_SECONDS = 0.2
_DISK_SECONDS = 2.0
_STOP_SECONDS = 5.0
_EVICTION_SECONDS = 2.0  # time for an evicted driver to report; both are told to end at once


class Supervisor(Worker):
    """Serves one MPS directory, from `start` until `stop`.

    If the directory becomes unusable, the thread ends with StateError (threading.excepthook).
    """

    def __init__(
        self, context: SupervisorContext, timing: WorkerTiming, clock: Callable[[], float]
    ) -> None:
        """Take what all domains have in common; the clock counts monotonic seconds."""
        super().__init__("mps supervisor")
        self._context = context
        self._files = context.files
        self._timing = timing
        self._clock = clock
        self._workers: dict[DomainId, DomainWorker] = {}
        self._looks: dict[DomainId, Look] = {}
        self._lock = NamedLock(context.files.lock)
        self._watch = FolderWatch(context.files.desired_folder)

    def ring(self) -> None:
        """Make the thread check the directory soon."""
        self._watch.wake()

    def _run(self) -> None:
        try:
            if self._take_lock():
                self._remember_modes()
                while not self._stop.is_set():
                    self._follow()
                    self._watch.wait(_LOOK_SECONDS)
        finally:
            self._shut_down()

    def let_domains_end(self, pause: Callable[[float], bool]) -> None:
        """Wait while there are domains and an evicted driver waits for their claims.

        Daemons have GPUs open, so the GPU driver cannot be replaced (kubelet/eviction.py). Work
        continues meanwhile. The wait also ends if `pause`, called with seconds, returns True.
        """
        known_by = self._clock() + _EVICTION_SECONDS
        while self.domains():
            driver = None
            with suppress(StateError):
                driver = holder_of(self._files.eviction)
            if driver is not None:
                known_by = self._clock()
            elif self._clock() >= known_by:
                return
            if pause(_LOCK_SECONDS):
                return

    def domains(self) -> frozenset[DomainId]:
        """Return the ids of the domains that have a worker now."""
        return frozenset(self._workers)

    def states(self) -> Mapping[str, int]:
        """Return how many domains are in each state now."""
        return Counter(str(worker.state or State.STARTING) for worker in self._workers.values())

    def _take_lock(self) -> bool:
        """Take the lock when no other supervisor has it; return False if stopped before.

        It waits while a disk is full or read-only, because a restart would not help, and running
        daemons need no supervisor until one dies. Raises StateError if the directory is unusable.
        """
        once = LogOnce()
        while True:
            reason, seconds = "another one is running", _LOCK_SECONDS
            try:
                self._files.make_folders()
                if self._lock.take(self._context.supervisor):
                    break
            except StateError as error:
                if not is_of_the_disk(error):
                    raise
                reason, seconds = str(error), _DISK_SECONDS
            if once.is_new(reason):
                log.warning("mps supervisor waits", reason=reason, lock=str(self._files.lock))
            if self._stop.wait(seconds):
                return False
        log.info("mps supervisor started", directory=str(self._files.root))
        return True

    def _remember_modes(self) -> None:
        """Read the modes that earlier supervisors found, before a worker asks who uses a GPU."""
        for domain in sorted(self._left_over()):
            record = read_record(self._files.paths(domain).record, self._context.boot_id)
            if record is not None:
                self._context.modes.remember(domain, record.modes_found)

    def _left_over(self) -> set[DomainId]:
        """Return the domains that may have something to undo, requested or not."""
        names = {*names_in(self._files.domains_folder), *ids_in(self._files.status_folder)}
        return set(map(DomainId, filter(is_id, names)))

    def _follow(self) -> None:
        wanted = {domain for domain in ids_in(self._files.desired_folder) if is_id(domain)}
        # It is replaced and never changed in place, because other threads read it.
        self._workers = {
            domain: worker for domain, worker in self._workers.items() if not worker.has_ended
        }
        for domain in sorted(wanted):
            path = self._files.desired(domain)
            look = look_of(path)
            if look is not None and self._looks.get(domain) != look:
                self._looks[domain] = look
                self._want(domain, _desired(path, domain))
        for domain in sorted((set(self._workers) | set(self._looks) | self._left_over()) - wanted):
            if domain in self._looks or domain not in self._workers:
                self._looks.pop(domain, None)
                self._want(domain, None)

    def _want(self, domain: DomainId, desired: Desired) -> None:
        worker = self._workers.get(domain)
        if worker is None and desired == Unreadable(reason=None):
            return
        if worker is None or not worker.want(desired):
            worker = DomainWorker(domain, self._context, self._timing, self._clock)
            worker.want(desired)
            self._workers = {**self._workers, domain: worker}
            worker.start()

    def _shut_down(self) -> None:
        for worker in self._workers.values():
            worker.stop(0)
        late = [
            domain for domain, worker in self._workers.items() if not worker.stop(_STOP_SECONDS)
        ]
        if late:
            log.warning("mps workers still busy", domains=late)
        self._lock.release()
        self._watch.close()
        log.info("mps supervisor stopped", daemons="go on")


def _desired(path: Path, domain: DomainId) -> Desired:
    try:
        data = read_file(path)
        desired: Domain | None = None if data is None else decode_domain(data)
        if desired is not None and desired.id != domain:
            return _unreadable(path, f"it belongs to domain {desired.id}")
    except VersionError as error:
        log.warning(
            "mps domain of a newer driver left as it is",
            file=str(path),
            reason=str(error),
            remedy="run the MPS supervisor in that driver's version on this node",
        )
        return Unreadable(reason=None)
    except StateError as error:
        return _unreadable(path, str(error))
    return desired


def _unreadable(path: Path, reason: str) -> Unreadable:
    log.error("desired state of an mps domain not readable", file=str(path), reason=reason)
    return Unreadable(
        reason=f"{path} cannot be read: {reason}; the driver writes it again when a claim that "
        "uses it is prepared"
    )
