"""Finds the processes of MPS domains, tells whether they run, and ends them.

A process is identified by its PID and the start time in /proc/<pid>/stat, because PIDs are reused.
Every process of a domain has a token in its environment, which servers inherit from their daemon.
It identifies a process even if its PID was never recorded. It is secret, because a tenant can give
its own processes any name, environment and program (NVIDIA's are in its container, too). Processes
in another PID namespace, such as a container's, never count as ours, and their memory is not read.
Names are compared as bytes, because they may not be text.
"""

import os
import select
import signal
import socket
import stat
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from dra_driver.mps.domain import Daemon

MARK = "DRA_DRIVER_MPS_DOMAIN"
"""Environment variable of a domain's processes: its folder. It is for people, and no proof."""

TOKEN = "DRA_DRIVER_MPS_TOKEN"  # noqa: S105 (its name)
"""Environment variable of a domain's processes: the record's token."""

GENERATION = "DRA_DRIVER_MPS_GENERATION"
"""Environment variable of a domain's processes: `Domain.daemon_generation`."""

_PROC = Path("/proc")
_COMMAND = b"nvidia-cuda-mps"  # of daemon and server: the kernel keeps 15 bytes of a name
_STATE, _START = 0, 19  # fields 3 and 22 of stat, counted after the name, proc_pid_stat(5)
_GONE = (b"Z", b"X")


def daemon_at(pid: int) -> Daemon | None:
    """Return the process that has this PID now; None if it has ended."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[_STATE] in _GONE:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # it is our child if this process is PID 1 of a container
        return None
    return Daemon(pid=pid, start_ticks=int(fields[_START]))


def is_alive(daemon: Daemon) -> bool:
    """Tell whether exactly this process runs."""
    return daemon_at(daemon.pid) == daemon


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment a process was started with; empty if it cannot be read."""
    try:
        content = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    entries = (os.fsdecode(entry).partition("=") for entry in content.split(b"\0"))
    return {name: value for name, _, value in entries if name}


def marked(folder: Path) -> list[Daemon]:
    """Return the running MPS processes whose environment names the domain with this folder."""
    return _with_variable(MARK, str(folder))


def owned(token: str) -> list[Daemon]:
    """Return the running processes of the domain with this token: its daemons and servers."""
    if not token:
        return []
    return _with_variable(TOKEN, token)


def has_token(daemon: Daemon, token: str) -> bool:
    """Tell whether exactly this process runs and has the token."""
    return bool(token) and environment_of(daemon.pid).get(TOKEN) == token and is_alive(daemon)


def is_outside_containers(daemon: Daemon) -> bool:
    """Tell whether a process is in this process's PID namespace, which is the host's."""
    try:
        theirs = (_PROC / str(daemon.pid) / "ns/pid").stat()
        return os.path.samestat(theirs, (_PROC / "self/ns/pid").stat())
    except OSError:
        return False


def _with_variable(name: str, value: str) -> list[Daemon]:
    daemons = []
    for entry in os.listdir(_PROC):  # noqa: PTH208 (names are what is wanted)
        if not entry.isdecimal() or _command(entry) != _COMMAND:
            continue
        # It is identified before its environment is read, because the PID may be reused.
        daemon = daemon_at(int(entry))
        if daemon is None or not is_outside_containers(daemon):
            # Reading its memory could hang, if that is a file on a tenant's own NFS server.
            continue
        if environment_of(daemon.pid).get(name) == value and is_alive(daemon):
            daemons.append(daemon)
    return daemons


def listener(folder: Path, name: str) -> Daemon | None:
    """Return the process that listens on a unix socket (SO_PEERCRED), in a folder of no tenant."""
    pid = _listening_pid(folder, name)
    return daemon_at(pid) if pid else None


def listens(folder: Path, name: str) -> bool:
    """Tell whether any process listens on a unix socket, even one whose PID is not visible here."""
    return _listening_pid(folder, name) is not None


def _listening_pid(folder: Path, name: str) -> int | None:
    """Return the PID of the listener; 0 if it is in a PID namespace that is not visible here.

    Only for folders that no tenant can write. A symbolic link is not followed, and only a socket is
    opened; a listener that does not answer is not waited for. The path of a socket may have 107
    bytes, and a domain's may be longer, so the socket is reached through the folder's descriptor.
    """
    try:
        inside = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=inside)
    except OSError:
        return None
    finally:
        os.close(inside)
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return None
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
            end.setblocking(False)
            end.connect(f"/proc/self/fd/{descriptor}")
            room = struct.calcsize("3i")
            credentials = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, room)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    pid: int = struct.unpack("3i", credentials)[0]
    return max(pid, 0)


def kill(daemons: Iterable[Daemon], seconds: float) -> bool:
    """Kill processes and wait until they are gone; return whether they are."""
    ended = [_await(daemon, seconds, kill=True) for daemon in daemons]
    return all(ended)


def wait_for_end(daemon: Daemon, seconds: float) -> bool:
    """Wait until a process has ended; return whether it has."""
    return _await(daemon, seconds, kill=False)


def _await(daemon: Daemon, seconds: float, *, kill: bool) -> bool:
    try:
        descriptor = os.pidfd_open(daemon.pid)
    except ProcessLookupError:
        return True
    try:
        # The start time is compared now, because the descriptor keeps the PID from being reused.
        if not is_alive(daemon):
            return True
        if kill:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        ended = has_ended(descriptor, seconds)
        is_alive(daemon)  # reaps it, if it is our child
        return ended
    finally:
        os.close(descriptor)


def has_ended(descriptor: int, seconds: float = 0.0) -> bool:
    """Wait until the process of a descriptor (pidfd_open(2)) has ended; return whether it has."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _command(pid: str) -> bytes:
    try:
        return (_PROC / pid / "comm").read_bytes().rstrip(b"\n")
    except OSError:
        return b""
