"""Tells whether a domain's daemon and its servers are well, by the daemon's reports and by probes.

After a fatal fault of one client, a server refuses new clients (FAULT) until all affected ones have
ended. If one of them does not end, only a new daemon helps, which costs all clients their work. The
same is true if the daemon does not answer. A server can also hang without reporting it. That is
assumed once it has left two probes in a row unanswered while its daemon answered. An error counts
as an answer, and a probe that waited for something other than the server does not count, because a
false alarm would cost all clients their work. A probe takes GPU memory and a client's place. So a
server is probed at once only if a client has ended since the last look, and otherwise once in an
interval while it has clients. There is never more than one probe, even if the last one cannot be
killed.
"""

from collections.abc import Callable, Iterable, Sequence

import structlog
from msgspec import Struct

from dra_driver.errors import DeviceError
from dra_driver.mps.daemon.limits import ANSWERED, Ask
from dra_driver.mps.daemon.probe import Outcome, Place, Probe, Prober, Server
from dra_driver.mps.domain import Daemon, Domain
from dra_driver.mps.processes import daemon_at

log = structlog.get_logger()

FAILURE_THRESHOLD = 2
"""How many probes in a row have to stay unanswered before a server counts as hanging."""

_FAULT, _ACTIVE = "FAULT", "ACTIVE"
_NOBODY: frozenset[int] = frozenset()


class WorkerTiming(Struct, frozen=True, kw_only=True):
    """How often things are done for a domain, in seconds.

    A daemon that has run for `settled` is stable. If its server is in FAULT or hangs, it is checked
    every `unhealthy_interval`. It is replaced when that, or its silence, has lasted for
    `replace_after`; never if that is 0. A server with clients is probed every `probe_interval`, or
    never if that is 0; if its clients come and go, probes are `check_interval` apart.
    """

    first_retry: float = 0.2
    longest_retry: float = 30.0
    check_interval: float = 60.0
    settled: float = 20.0
    unhealthy_interval: float = 5.0
    replace_after: float = 60.0
    probe_interval: float = 600.0
    probe_timeout: float = 30.0


class ServerState(Struct, frozen=True, kw_only=True):
    """What a daemon says about one of its servers. `clients` are PIDs, if they were asked for."""

    pid: int
    status: str
    clients: frozenset[int] = frozenset()

    @property
    def is_active(self) -> bool:
        """Whether it accepts clients, as far as the daemon knows."""
        return self.status == _ACTIVE


def server_states(ask: Ask, *, with_clients: bool = False) -> tuple[ServerState, ...]:
    """Return the states of the daemon's servers. Raises DeviceError."""
    return tuple(
        ServerState(
            pid=pid,
            status=_FAULT if _FAULT in said else said[0] if said else "",
            clients=frozenset(_pids(ask([f"get_client_list {pid}"]))) if with_clients else _NOBODY,
        )
        for pid in _pids(ask(["get_server_list", ANSWERED]))  # a rejected call is no empty list
        for said in ([line.strip() for line in ask([f"get_server_status {pid}"])],)
    )


def server_fault(states: Iterable[ServerState]) -> str:
    """Return what is wrong with a daemon's servers, for people; empty if they are well."""
    for state in states:
        if state.status == _FAULT:
            return (
                f"the MPS server (PID {state.pid}) is in state {_FAULT}: CUDA programs that used "
                "it have lost their work, and new ones are refused until those have ended; "
                "restart the pods that use it"
            )
    return ""


def _pids(lines: Iterable[str]) -> list[int]:
    """Return the PIDs in an answer, which is a sentence if there are none."""
    texts = map(str.strip, lines)
    return [int(text) for text in texts if text.isascii() and text.isdecimal()]


class Liveness:
    """Knows what is wrong with a daemon, and when to replace it (`replace_after` 0: never)."""

    def __init__(self, clock: Callable[[], float], replace_after: float) -> None:
        self._clock = clock
        self._replace_after = replace_after
        self._daemon: Daemon | None = None
        self._since: float | None = None
        self.reason = ""

    def note(self, daemon: Daemon | None, reason: str) -> bool:
        """Note what is wrong (empty: nothing); return whether the daemon was unhealthy before."""
        was_unhealthy = self._since is not None and self._daemon == daemon
        self._daemon, self.reason = daemon, reason
        if not reason:
            self._since = None
        elif not was_unhealthy:
            self._since = self._clock()
        return was_unhealthy

    def must_replace(self) -> bool:
        """Tell whether the daemon has been unhealthy for too long."""
        if self._since is None or not self._replace_after:
            return False
        return self._clock() >= self._since + self._replace_after


class HangWatch:
    """Watches one domain's server. For one thread; only `close` waits for a probe."""

    def __init__(
        self,
        prober: Prober,
        identify: Callable[[int], Server | None],
        timing: WorkerTiming,
        clock: Callable[[], float],
        *,
        process_at: Callable[[int], Daemon | None] = daemon_at,
    ) -> None:
        """Take the parts; `identify` returns the domain's own server with a PID, None if not."""
        self._prober = prober
        self._identify = identify
        self._timing = timing
        self._clock = clock
        self._process_at = process_at
        self._probe: Probe | None = None
        self._is_over = self._is_stuck = False
        self._ended: tuple[Probe, Outcome] | None = None
        self._ended_at: float | None = None
        self._ordinal = 0
        self._forget(None)

    @property
    def is_on(self) -> bool:
        """Whether servers are probed at all."""
        return self._timing.probe_interval > 0

    @property
    def descriptor(self) -> int | None:
        """Readable when the running probe has ended; None without one."""
        return None if self._probe is None else self._probe.descriptor

    @property
    def seconds(self) -> float | None:
        """In how many seconds to check the running probe; None without one."""
        return None if self._probe is None or self._is_over else self._probe.seconds_left

    @property
    def is_in_doubt(self) -> bool:
        """Whether the last probe got no answer, so that it is repeated soon."""
        return self._silences > 0

    def turn(self) -> None:
        """Check the running probe; called whenever the domain's thread wakes up."""
        probe = self._probe
        if probe is None:
            return
        if not self._is_over:
            outcome = probe.look()
            if outcome is None:
                return
            self._is_over, self._ended, self._ended_at = True, (probe, outcome), self._clock()
        if probe.is_gone():
            self._probe, self._is_over, self._is_stuck = None, False, False
        elif (
            not self._is_stuck
            and self._clock() >= (self._ended_at or 0.0) + self._timing.probe_timeout
        ):
            self._is_stuck = True
            log.warning(
                "mps probe does not end",
                probe=probe.pid,
                remedy="it hangs in the GPU driver: see dmesg for NVRM and Xid lines",
            )

    def look(self, domain: Domain, states: Sequence[ServerState]) -> str:
        """Judge the probe that has ended, and start the next one if it is time.

        `states` are the domain's servers, as the daemon has just reported. Returns what is wrong,
        for people; empty if nothing is, or nothing is known.
        """
        server = self._only_one(states)
        if server != self._server:
            self._forget(server)
        if server is None:
            return ""
        self._note_clients(states[0].clients)
        if self._ended is not None:
            self._judge(server, *self._ended)
            self._ended = None
        if self._is_due():
            self._start(domain, server)
        if self._silences < FAILURE_THRESHOLD:
            return ""
        return (
            f"the MPS server (PID {server.process.pid}) hangs: {self._silences} probes in a row, "
            "which only asked it for a CUDA context, had no answer in "
            f"{self._timing.probe_timeout:g} s each, while its daemon answers; a client that was "
            "killed during its work can cause that. New CUDA programs hang, too, and running "
            "ones may have lost their work: restart the pods that use it"
        )

    def drop(self) -> None:
        """End the running probe, and forget what is known about the server."""
        if self._probe is not None:
            self._probe.give_up()
            self._is_over, self._ended_at = True, self._clock()
            self.turn()
        self._forget(None)

    def close(self, seconds: float) -> None:
        """End the running probe, and wait at most so many seconds for its end."""
        if self._probe is not None:
            self._probe.give_up(seconds)
        self.drop()

    def _only_one(self, states: Sequence[ServerState]) -> Server | None:
        """Return the domain's only server; None if there are several, or it accepts no clients."""
        if not self.is_on or len(states) != 1 or not states[0].is_active:
            return None
        return self._identify(states[0].pid)

    def _forget(self, server: Server | None) -> None:
        self._server = server
        self._seen_at = self._clock()
        self._clients: frozenset[Daemon] = frozenset()
        self._dead: frozenset[int] = frozenset()
        self._is_suspect = False
        self._silences = 0
        self._ended = None

    def _note_clients(self, pids: frozenset[int]) -> None:
        """Note the clients, and whether one has ended since the last look.

        A server that hangs may keep a dead client on its list.
        """
        probe = self._probe.pid if self._probe is not None else None
        processes = {pid: self._process_at(pid) for pid in pids if pid != probe}
        clients = frozenset(process for process in processes.values() if process is not None)
        dead = frozenset(pid for pid, process in processes.items() if process is None)
        if self._clients - clients or dead - self._dead:
            self._is_suspect = True
        self._clients, self._dead = clients, dead

    def _is_due(self) -> bool:
        if self._probe is not None:
            return False
        now, ended = self._clock(), self._ended_at
        if self._silences:
            return ended is None or now >= ended + self._timing.unhealthy_interval
        if self._is_suspect:
            return ended is None or now >= ended + self._timing.check_interval
        since = max(self._seen_at, self._seen_at if ended is None else ended)
        return bool(self._clients) and now >= since + self._timing.probe_interval

    def _start(self, domain: Domain, server: Server) -> None:
        self._is_suspect = False
        try:
            ordinal = self._ordinal % len(domain.devices)
            self._probe, self._is_over = self._prober.start(domain, server, ordinal), False
        except DeviceError as error:
            self._ended_at, self._silences = self._clock(), 0
            log.debug("mps server not probed", domain=domain.id, cause=str(error))

    def _judge(self, server: Server, probe: Probe, outcome: Outcome) -> None:
        facts = {"server": server.process.pid, "probe": probe.pid, "said": probe.said}
        if outcome is not Outcome.SILENCE:
            # The next probe is of another device; only an unanswered one is repeated on the same.
            self._ordinal, self._silences = self._ordinal + 1, 0
            log.debug("mps server answered a probe", **facts)
            return
        place = self._prober.place_of(probe.pid)
        if place is Place.SERVER or (server.for_all and place is not Place.QUEUE):
            self._silences += 1
            log.warning("mps server left a probe without an answer", **facts)
        else:
            # The probe may have waited for clients of another user, not for the server.
            self._silences = 0
            log.info("mps probe may have waited for other users", place=place.name, **facts)
