"""Keeps one MPS domain in its desired state, on a separate thread, so no domain delays another.

In: the desired state, which may change at any time. Out: the domain's status file. The thread
sleeps until the desired state changes, the daemon dies (pidfd_open(2)) or it is time to check that
the daemon answers. Failures are retried with back-off as long as the domain is desired. A daemon
that keeps dying soon after its start counts as failing, and one that is not well for long is
replaced.
"""

import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress

import structlog
from msgspec import Struct

from dra_driver.errors import DeviceError, DriverError, SilenceError, StateError
from dra_driver.host.worker import Worker
from dra_driver.mps.daemon.health import Liveness, WorkerTiming, server_fault
from dra_driver.mps.domain import Domain, DomainId, State, Status, encode
from dra_driver.mps.files import delete_file, write_file
from dra_driver.mps.processes import is_alive
from dra_driver.mps.supervisor.lifecycle import (
    LOST_WORK,
    Lifecycle,
    ServingDaemon,
    SupervisorContext,
)

log = structlog.get_logger()

_ATTEMPTS_BEFORE_FAILED = 3


class Unreadable(Struct, frozen=True, kw_only=True):
    """A desired state that cannot be read, and why: the domain stays as it is.

    Without a reason, it has a newer version's format, and the domain is left to that version.
    """

    reason: str | None


Desired = Domain | Unreadable | None
"""The desired state of a domain; None if it is to be removed."""


class DomainWorker(Worker):
    """The worker of one domain. `want` may be called from any thread; call `start` only once."""

    def __init__(
        self,
        domain: DomainId,
        context: SupervisorContext,
        timing: WorkerTiming,
        clock: Callable[[], float],
    ) -> None:
        """Take the domain to look after; the clock counts monotonic seconds."""
        super().__init__(f"mps {domain}")
        self.domain = domain
        self._context = context
        self._timing = timing
        self._clock = clock
        self._log = log.bind(domain=domain)
        self._lock = threading.Lock()
        self._desired: Desired = None
        self._ended = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Only the thread uses these:
        self._life = Lifecycle(domain, context, self._report)
        self._generation = ""
        self._serving: ServingDaemon | None = None
        self._serving_since = 0.0
        self._liveness = Liveness(clock, timing.replace_after)
        self._failures = 0
        self._status: Status | None = None

    def want(self, desired: Desired) -> bool:
        """Set the desired state; return False if this worker has ended and cannot accept it."""
        with self._lock:
            if not self._ended:
                self._desired = desired
                os.eventfd_write(self._wake, 1)
            return not self._ended

    def ring(self) -> None:
        """Wake the thread, which also waits for the end of the daemon."""
        with self._lock:
            if not self._ended:
                os.eventfd_write(self._wake, 1)

    @property
    def state(self) -> State | None:
        """The state in the last status; None before the first one."""
        status = self._status
        return None if status is None else status.state

    @property
    def has_ended(self) -> bool:
        """Whether the thread has ended, because it was told to or the domain is removed."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        pause: float | None = 0.0
        while pause is not None:
            self._sleep(pause)
            with self._lock:
                desired = self._desired
            if not self._stop.is_set():
                pause = self._work(desired)
            with self._lock:
                # A desired state that was set meanwhile is handled before the worker ends.
                if self._stop.is_set() or (pause is None and self._desired is None):
                    self._ended, pause = True, None
                    os.close(self._wake)
                elif pause is None:
                    pause = 0.0

    def _sleep(self, seconds: float) -> None:
        """Wait for a new desired state, the end of the daemon, or the given time."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        pidfd = None
        try:
            if self._serving is not None:
                pidfd = os.pidfd_open(self._serving.daemon.pid)
                poll.register(pidfd, select.POLLIN)
            poll.poll(seconds * 1000)
        except ProcessLookupError:
            return  # it has died already
        finally:
            if pidfd is not None:
                os.close(pidfd)
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _work(self, desired: Desired) -> float | None:
        """Do what is needed; return after how many seconds to check again, None for never."""
        pause = self._timing.check_interval
        try:
            match desired:
                case None:
                    self._end()
                    return None
                case Unreadable(reason=reason):
                    self._generation, self._serving = "", None
                    if reason is not None:
                        self._report(State.FAILED, reason)
                case Domain():
                    pause = self._maintain(desired)
        except (DriverError, OSError) as error:
            return self._fail(desired, error)
        if self._is_settled():
            self._failures = 0
        return pause

    def _maintain(self, wanted: Domain) -> float:
        """Make a daemon serve the domain; return after how many seconds to check again."""
        self._generation = wanted.generation
        before, self._serving = self._serving, None
        if before and not is_alive(before.daemon) and not self._is_settled():
            log_folder = self._context.files.paths(self.domain).log
            raise DeviceError(f"{LOST_WORK}; it died soon after its start, see {log_folder}")
        if self._liveness.must_replace():
            self._life.give_up(self._liveness.reason)
            self._liveness.note(None, "")
            before = None
        try:
            serving = self._life.ensure_serving(wanted, before)
            # A daemon that has just been started has no server, and a pod may wait for it.
            is_known = self._status is not None and self._status.daemon == serving.daemon
            fault = self._look_at_servers(wanted) if is_known else ""
        except SilenceError as error:
            record = self._life.record
            was_silent = self._liveness.note(record.daemon if record else None, str(error))
            if before is None or was_silent:
                raise
            # It may be well: it answers one caller at a time, and clients can keep it busy.
            self._serving = before
            return self._timing.first_retry
        self._liveness.note(serving.daemon, fault)
        if before is None or serving.daemon != before.daemon:
            self._serving_since = self._clock()
        self._serving = serving
        if fault:
            if self.state is not State.FAULTED:
                self._log.warning("mps server faulted", cause=fault)
            self._report(State.FAULTED, fault)
            return min(self._timing.unhealthy_interval, self._timing.check_interval)
        self._report_ready(serving)
        return self._timing.check_interval

    def _look_at_servers(self, wanted: Domain) -> str:
        """Return what is wrong with the daemon's servers; empty if they are well."""
        states = self._life.server_states()
        fault = server_fault(states)
        if not fault:
            self._life.keep_limits(wanted, states)
        return fault

    def _is_settled(self) -> bool:
        return self._clock() >= self._serving_since + self._timing.settled

    def _end(self) -> None:
        self._generation, self._serving = "", None
        self._life.tear_down()
        # The status is deleted last: without one, everything has been removed.
        delete_file(self._context.files.status(self.domain))
        self._status = None
        self._log.info("mps domain removed")

    def _fail(self, desired: Desired, error: DriverError | OSError) -> float:
        self._failures += 1
        before, reason = self._status, str(error)
        if desired is None:
            state = State.STOPPING
        elif self._failures >= _ATTEMPTS_BEFORE_FAILED:
            state = State.FAILED
        else:
            served = before is not None and before.state in (State.READY, State.FAULTED)
            had_daemon = served or (before is not None and before.restarts > 0)
            state = State.RESTARTING if had_daemon else State.STARTING
        if before is None or (before.state, before.reason) != (state, reason):
            self._log.warning("mps domain not ready", state=str(state), cause=reason)
        with suppress(StateError):  # such as a full disk; retried with everything else
            self._report(state, reason)
        return min(
            self._timing.first_retry * 2.0 ** min(self._failures - 1, 16),
            self._timing.longest_retry,
        )

    def _report(self, state: State, reason: str) -> None:
        """Write the status of a domain that is not ready."""
        record = self._life.record
        self._write(
            Status(
                id=self.domain,
                state=state,
                supervisor=self._context.supervisor,
                generation=self._generation,
                reason=reason,
                daemon=record.daemon if record is not None else None,
                restarts=record.restarts if record is not None else 0,
                failures=self._failures,
            )
        )

    def _report_ready(self, serving: ServingDaemon) -> None:
        record = self._life.record
        status = Status(
            id=self.domain,
            state=State.READY,
            supervisor=self._context.supervisor,
            generation=serving.generation,
            daemon=serving.daemon,
            active_thread_percentage=serving.limits.active_thread_percentage,
            pinned_memory_mib=dict(serving.limits.pinned_memory_mib),
            restarts=record.restarts if record is not None else 0,
        )
        if status != self._status:
            self._log.info("mps domain ready", pid=serving.daemon.pid, restarts=status.restarts)
        self._write(status)

    def _write(self, status: Status) -> None:
        if status != self._status:
            write_file(self._context.files.status(self.domain), encode(status), durable=False)
            self._status = status
