"""Whether a domain's daemon and its servers are well, as far as the daemon says so.

In: a way to ask the daemon. Out: what is wrong, and whether it has been so for too long. A fatal
fault of one client makes a server refuse new clients (FAULT) until all that were hit have ended.
That passes by itself, unless one of them does not end: then only a new daemon helps, at the price
of the work of all clients, and so it does where the daemon does not answer, or a server hangs
without saying so (mps/daemon/hang.py).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dra_driver.mps.daemon.limits import Ask
from dra_driver.mps.domain import Daemon

_FAULT, _ACTIVE = "FAULT", "ACTIVE"
_NOBODY: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """What a daemon says of one of its servers. `clients` are PIDs, where they were asked for."""

    pid: int
    status: str
    clients: frozenset[int] = frozenset()

    @property
    def is_active(self) -> bool:
        """Whether it takes clients, as far as the daemon knows."""
        return self.status == _ACTIVE


def server_states(ask: Ask, *, with_clients: bool = False) -> tuple[ServerState, ...]:
    """Return the states of the daemon's servers.

    Raises:
        SilenceError: the daemon does not answer.
        DeviceError: it cannot be asked.
    """
    return tuple(
        ServerState(
            pid=pid,
            status=_FAULT if _FAULT in said else said[0] if said else "",
            clients=frozenset(_pids(ask([f"get_client_list {pid}"]))) if with_clients else _NOBODY,
        )
        for pid in _pids(ask(["get_server_list"]))
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
    """Return the PIDs that an answer lists; where there are none, it is a sentence."""
    texts = map(str.strip, lines)
    return [int(text) for text in texts if text.isascii() and text.isdecimal()]


class Illness:
    """What a daemon lacks, and since when.

    `clock` counts seconds, and so does `patience`; without patience, 0, it is waited for for ever.
    """

    def __init__(self, clock: Callable[[], float], patience: float) -> None:
        self._clock = clock
        self._patience = patience
        self._daemon: Daemon | None = None
        self._since: float | None = None
        self.reason = ""

    def note(self, daemon: Daemon | None, reason: str) -> bool:
        """Note how a daemon is, with no reason if it is well; return whether it was ill before."""
        was_ill = self._since is not None and self._daemon == daemon
        self._daemon, self.reason = daemon, reason
        if not reason:
            self._since = None
        elif not was_ill:
            self._since = self._clock()
        return was_ill

    def is_too_long(self) -> bool:
        """Tell whether the daemon has been ill for longer than it is waited for."""
        if self._since is None or not self._patience:
            return False
        return self._clock() >= self._since + self._patience
