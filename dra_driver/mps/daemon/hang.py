"""Whether a domain's server hangs without saying so: when to probe it, and what to make of it.

In: what the daemon says of its servers at each look, and how probes end (mps/daemon/probe.py). Out:
what is wrong, for people, once a server has left two probes in a row without an answer while its
daemon answered. Any answer counts as one, an error too, and a probe that waited for something else
than the server counts for nothing: a false alarm would cost all clients their work.

A context takes memory of the GPU and one of its places for clients. So a server is probed at once
only if a client of it has ended since the last look, and else once in an interval while it has
clients. There is never more than one probe, also where the last one cannot be killed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from dra_driver.errors import DeviceError
from dra_driver.mps.daemon.health import ServerState
from dra_driver.mps.daemon.probe import Outcome, Place, Server
from dra_driver.mps.domain import Daemon, Domain
from dra_driver.mps.processes import daemon_at

log = structlog.get_logger()

ENOUGH = 2
"""How many probes in a row have to be left without an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HangTiming:
    """Seconds.

    Attributes:
        interval: between two probes of a server that has clients; 0: none is ever probed.
        limit: how long a probe waits for an answer.
        gap: at least between two probes of a server whose clients come and go.
        again: until a probe that was not answered is repeated.
    """

    interval: float
    limit: float
    gap: float
    again: float


class AProbe(Protocol):
    """A probe that was started (mps/daemon/probe.py)."""

    pid: int
    descriptor: int

    @property
    def seconds_left(self) -> float:
        """How many seconds it is left alone for."""
        ...

    @property
    def said(self) -> str:
        """What it said last."""
        ...

    def look(self) -> Outcome | None:
        """Return how it ended, None while it has time left."""
        ...

    def is_gone(self) -> bool:
        """Tell whether its process has ended."""
        ...

    def give_up(self, seconds: float = 0.0) -> None:
        """Kill it, and wait at most so long for its end."""
        ...


class Probes(Protocol):
    """Starts probes of one domain (mps/daemon/probe.py)."""

    def start(self, domain: Domain, server: Server, ordinal: int) -> AProbe:
        """Start a probe; raises DeviceError."""
        ...

    def place_of(self, pid: int) -> Place:
        """Return where a client waits."""
        ...


class HangWatch:
    """Watches one domain's server. For one thread; no call but `close` waits for a probe."""

    def __init__(
        self,
        probes: Probes,
        identify: Callable[[int], Server | None],
        timing: HangTiming,
        clock: Callable[[], float],
        *,
        process_at: Callable[[int], Daemon | None] = daemon_at,
    ) -> None:
        """Take the parts it works with.

        Args:
            probes: starts probes.
            identify: returns the domain's own server with a PID; None if it is not that.
            timing: how often to probe.
            clock: monotonic seconds.
            process_at: returns the process with a PID, None if it has ended.
        """
        self._probes = probes
        self._identify = identify
        self._timing = timing
        self._clock = clock
        self._process_at = process_at
        self._probe: AProbe | None = None
        self._is_over = self._is_stuck = False
        self._ended: tuple[AProbe, Outcome] | None = None
        self._ended_at: float | None = None
        self._ordinal = 0
        self._forget(None)

    @property
    def is_on(self) -> bool:
        """Whether servers are probed at all."""
        return self._timing.interval > 0

    @property
    def descriptor(self) -> int | None:
        """Readable when the probe that runs has ended; None where none runs."""
        return None if self._probe is None else self._probe.descriptor

    @property
    def seconds(self) -> float | None:
        """In how many seconds the probe that runs is to be seen to; None where none runs."""
        return None if self._probe is None or self._is_over else self._probe.seconds_left

    @property
    def is_in_doubt(self) -> bool:
        """Whether the last probe was left without an answer, so that it is soon repeated."""
        return self._silences > 0

    def turn(self) -> None:
        """See what has become of the probe that runs: at every wake of the domain's thread."""
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
        elif not self._is_stuck and self._clock() >= (self._ended_at or 0.0) + self._timing.limit:
            self._is_stuck = True
            log.warning(
                "mps probe does not end",
                probe=probe.pid,
                remedy="it hangs in the GPU driver: see dmesg for NVRM and Xid lines",
            )

    def look(self, domain: Domain, states: Sequence[ServerState]) -> str:
        """Judge the probe that has ended, and start the next if it is time.

        To be called when the daemon has just answered.

        Args:
            domain: the domain as it is wanted.
            states: its servers, as the daemon has just said.

        Returns:
            What is wrong, for people; empty if nothing is, or nothing is known.
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
        if self._silences < ENOUGH:
            return ""
        return (
            f"the MPS server (PID {server.process.pid}) hangs: {self._silences} probes in a row, "
            "which only asked it for a CUDA context, had no answer in "
            f"{self._timing.limit:g} s each, while its daemon answers; a client that was killed "
            "amid its work can cause that. CUDA programs that start hang too, and those that run "
            "may have lost their work: restart the pods that use it"
        )

    def drop(self) -> None:
        """Give the probe that runs up, and forget what is known of the server."""
        if self._probe is not None:
            self._probe.give_up()
            self._is_over, self._ended_at = True, self._clock()
            self.turn()
        self._forget(None)

    def close(self, seconds: float) -> None:
        """Give the probe that runs up, and wait at most so long for its end."""
        if self._probe is not None:
            self._probe.give_up(seconds)
        self.drop()

    def _only_one(self, states: Sequence[ServerState]) -> Server | None:
        """Return the domain's server; None where there are several, or it takes no clients."""
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
        """Note who the clients are, and whether one has ended since the last look.

        A server that hangs may keep one that is dead on its list.
        """
        probe = self._probe.pid if self._probe is not None else None
        found = {pid: self._process_at(pid) for pid in pids if pid != probe}
        clients = frozenset(one for one in found.values() if one is not None)
        dead = frozenset(pid for pid, one in found.items() if one is None)
        if self._clients - clients or dead - self._dead:
            self._is_suspect = True
        self._clients, self._dead = clients, dead

    def _is_due(self) -> bool:
        if self._probe is not None:
            return False
        now, ended = self._clock(), self._ended_at
        if self._silences:
            return ended is None or now >= ended + self._timing.again
        if self._is_suspect:
            return ended is None or now >= ended + self._timing.gap
        since = max(self._seen_at, self._seen_at if ended is None else ended)
        return bool(self._clients) and now >= since + self._timing.interval

    def _start(self, domain: Domain, server: Server) -> None:
        self._is_suspect = False
        try:
            ordinal = self._ordinal % len(domain.devices)
            self._probe, self._is_over = self._probes.start(domain, server, ordinal), False
        except DeviceError as error:
            self._ended_at, self._silences = self._clock(), 0
            log.debug("mps server not probed", domain=domain.id, cause=str(error))

    def _judge(self, server: Server, probe: AProbe, outcome: Outcome) -> None:
        facts = {"server": server.process.pid, "probe": probe.pid, "said": probe.said}
        if outcome is not Outcome.SILENCE:
            # Each device has its turn, and two probes in a row are of the same one.
            self._ordinal, self._silences = self._ordinal + 1, 0
            log.debug("mps server answered a probe", **facts)
            return
        place = self._probes.place_of(probe.pid)
        if place is Place.SERVER or (server.for_all and place is not Place.QUEUE):
            self._silences += 1
            log.warning("mps server left a probe without an answer", **facts)
        else:
            # Clients of another user may be in its way, or before it.
            self._silences = 0
            log.info("mps probe may have waited for other users", place=place.name, **facts)
