"""Tells from a daemon's own reports whether it and its servers are well.

After a fatal fault of one client, a server refuses new clients (FAULT) until all affected ones have
ended. If one of them does not end, only a new daemon helps, which costs all clients their work. The
same is true if the daemon does not answer. A server that hangs, but whose daemon answers, is not
noticed (docs/decisions/0016-a-probe-is-a-client.md).
"""

from collections.abc import Callable, Iterable

from msgspec import Struct

from dra_driver.mps.daemon.limits import ANSWERED, Ask
from dra_driver.mps.domain import Daemon

_FAULT, _ACTIVE = "FAULT", "ACTIVE"


class WorkerTiming(Struct, frozen=True, kw_only=True):
    """How often things are done for a domain, in seconds.

    A daemon that has run for `settled` is stable. If its server is in FAULT, it is checked every
    `unhealthy_interval`. It is replaced when that, or its silence, has lasted for `replace_after`;
    never if that is 0.
    """

    first_retry: float = 0.2
    longest_retry: float = 30.0
    check_interval: float = 60.0
    settled: float = 20.0
    unhealthy_interval: float = 5.0
    replace_after: float = 60.0


class ServerState(Struct, frozen=True, kw_only=True):
    """What a daemon says about one of its servers."""

    pid: int
    status: str

    @property
    def is_active(self) -> bool:
        """Whether it accepts clients, as far as the daemon knows."""
        return self.status == _ACTIVE


def server_states(ask: Ask) -> tuple[ServerState, ...]:
    """Return the states of the daemon's servers. Raises DeviceError."""
    return tuple(
        ServerState(pid=pid, status=_FAULT if _FAULT in said else said[0] if said else "")
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
