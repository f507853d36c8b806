"""Starts and watches probes: processes that are CUDA clients briefly, to see if a server answers.

Nothing here waits for the process. It is killed with its process group when its time is over, and
reaped when the kernel releases it, which is not while it hangs in the GPU driver. The probe is a
client like those in containers, with the same library, user and /dev/shm, in its own mount
namespace and session. It reaches the daemon through the folder that no tenant has, so nothing that
a tenant can write decides where it connects. It has nothing of the supervisor's environment, and
gives up all rights before its first call (mps/daemon/probe_client.py).
"""

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from pathlib import Path

from msgspec import Struct

from dra_driver.errors import DeviceError
from dra_driver.mps.client_edits import CONTAINER_PIPE_DIRECTORY
from dra_driver.mps.daemon import mounts, probe_client
from dra_driver.mps.daemon.control import Control
from dra_driver.mps.domain import Daemon, Domain
from dra_driver.mps.files import DomainPaths
from dra_driver.mps.processes import has_ended

_PROGRAM = probe_client.__file__
_ALARM_SECONDS = 10  # beyond the limit, in case nobody is left to kill it
_BEGIN_SECONDS = 1.0  # how long it may take until it asks the server
_MOST_BYTES = 4096
_TAIL_BYTES = 256 * 1024
_NEW_CLIENT = re.compile(rb"NEW CLIENT (\d+) from user \d+: ([^\n]*)")
_TAKEN, _QUEUED = b"Server already exists", b"pending list"


class Outcome(Enum):
    """How a probe ended."""

    WELL = auto()
    """It got a context, and freed it."""

    REFUSED = auto()
    """It got an error as the answer, or ended without having asked: no hang."""

    SILENCE = auto()
    """It asked, and got no answer within the limit."""


class Place(Enum):
    """Where a client waits, according to the daemon's log."""

    UNKNOWN = auto()
    QUEUE = auto()
    SERVER = auto()


class Server(Struct, frozen=True, kw_only=True):
    """A server that accepts clients: its process, and the user and group that it runs as.

    `for_all` says whether its daemon was started for clients of all users, which then never wait
    for each other.
    """

    process: Daemon
    user: int
    group: int
    for_all: bool


class Probe:
    """One probe's process. `look` says how it ended; `is_gone` whether another may be started."""

    def __init__(
        self, process: subprocess.Popen[bytes], seconds: float, clock: Callable[[], float]
    ) -> None:
        """Take the process, which was just started; `seconds` is how long it may take."""
        self._process = process
        self._seconds = seconds
        self._clock = clock
        self._deadline = clock() + seconds
        self._said = b""
        self._asks = False
        self.pid = process.pid
        self.descriptor = os.pidfd_open(process.pid)
        """Readable when the process has ended. Closed once it is gone."""

    @property
    def seconds_left(self) -> float:
        """How many seconds it has left; 0 when its time is over."""
        left = max(0.0, self._deadline - self._clock())
        return left if self._asks else min(left, _BEGIN_SECONDS)

    @property
    def said(self) -> str:
        """Its last output, for people."""
        return self._said.decode("ascii", "replace").strip().rpartition("\n")[2]

    def look(self) -> Outcome | None:
        """Return how it ended, None while it has time left; it is killed when its time is over."""
        ended = self._process.poll() is not None
        self._read()
        name, _, code = self.said.partition(" ")
        if code:
            self._kill()
            is_well = (name, code) == (probe_client.LAST_CALL, "0")
            return Outcome.WELL if is_well else Outcome.REFUSED
        if ended:
            return Outcome.REFUSED
        if name == probe_client.ASKING and not self._asks:
            # The server's time begins now, because the probe has just asked it.
            self._asks, self._deadline = True, self._clock() + self._seconds
        if self._clock() < self._deadline:
            return None
        self._kill()
        return Outcome.SILENCE if self._asks else Outcome.REFUSED

    def is_gone(self) -> bool:
        """Tell whether the process has ended and been reaped; does not wait for that."""
        if self.descriptor < 0:
            return True
        if self._process.poll() is None:
            return False
        os.close(self.descriptor)
        self.descriptor = -1
        if self._process.stdout is not None:
            self._process.stdout.close()
        return True

    def give_up(self, seconds: float = 0.0) -> None:
        """Kill the process in any state, and wait at most so many seconds for its end."""
        if self.is_gone():
            return
        self._kill()
        if has_ended(self.descriptor, seconds):
            self.is_gone()

    def _kill(self) -> None:
        if self._process.returncode is None:  # not reaped, so its PID is not reused
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def _read(self) -> None:
        pipe = self._process.stdout
        if pipe is None or len(self._said) >= _MOST_BYTES:
            return
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while poll.poll(0) and len(self._said) < _MOST_BYTES:
            data = os.read(pipe.fileno(), _MOST_BYTES - len(self._said))
            if not data:
                return
            self._said += data


class Prober:
    """Starts probes of one domain."""

    def __init__(
        self, control: Control, paths: DomainPaths, clock: Callable[[], float], seconds: float
    ) -> None:
        """Take the driver, the domain's paths, and how many seconds a server has to answer."""
        self._control = control
        self._paths = paths
        self._clock = clock
        self._seconds = seconds

    def start(self, domain: Domain, server: Server, ordinal: int) -> Probe:
        """Start a probe of a server, with a context on one of the domain's devices.

        Raises DeviceError if it cannot be started, which says nothing about the server.
        """
        library, binds = self._control.client_view(self._paths)
        limit = int(self._seconds) + 1
        numbers = (ordinal, server.user, server.group, 2 * limit + _ALARM_SECONDS)
        command = [sys.executable, "-I", "-S", _PROGRAM, str(library), *map(str, numbers)]
        environment = {
            "LC_ALL": "C",
            "CUDA_MPS_PIPE_DIRECTORY": CONTAINER_PIPE_DIRECTORY,
            "CUDA_VISIBLE_DEVICES": domain.visible_devices,
            # The smallest possible client, with a lower priority than working clients.
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
            "CUDA_MPS_CLIENT_PRIORITY": "1",
            "CUDA_CACHE_DISABLE": "1",
        }
        process = mounts.in_private_mounts(
            binds, partial(_start, command, environment), without=self._paths.folder.parent
        )
        return Probe(process, self._seconds, self._clock)

    def place_of(self, pid: int) -> Place:
        """Return where a client with that PID waits, according to the daemon's log."""
        return place_in(_tail(self._paths.log / "control.log"), pid)


def place_in(log: bytes, pid: int) -> Place:
    """Return where a client waits, by the last entry for its PID in a daemon's log.

    Clients can write to the daemon's log. By that, a domain's tenants can only hide that one of
    their own clients waits in the queue.
    """
    place = Place.UNKNOWN
    for number, said in _NEW_CLIENT.findall(log):
        if int(number) == pid:
            if _TAKEN in said:
                place = Place.SERVER
            elif _QUEUED in said:
                place = Place.QUEUE
    return place


def _tail(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read(_TAIL_BYTES)
    except OSError:
        return b""


def _start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise DeviceError(f"cannot run {command[0]}: {error.strerror}") from error
