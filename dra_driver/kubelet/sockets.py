"""The driver's unix sockets: where they are, and gRPC servers whose sockets appear complete.

The kubelet watches `plugins_registry` and connects as soon as a socket appears. So a socket is
bound under a hidden name, listens, gets its permissions, and is then renamed; the kubelet ignores
hidden names, and the rename also replaces a stale socket of an earlier process. A socket is removed
only if it is still our own. A unix socket's path has at most 107 bytes
(kubernetes/kubernetes#139166; its pkg/kubelet/pluginmanager/pluginwatcher; unix(7)).
"""

import base64
import hashlib
import os
import re
import secrets
import socket
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from contextlib import suppress
from pathlib import Path

import grpc
from msgspec import Struct

from dra_driver.devices.names import DRIVER_NAME
from dra_driver.errors import DriverError, SetupError, TransientError
from dra_driver.host.files import is_of_the_disk

MOST_CALLS = 1024
"""Calls that a server has at once, including those that wait; a kubelet has one for each pod."""

MAX_SOCKET_PATH_BYTES = 107  # sun_path has 108 bytes, and one is the closing NUL (unix(7))
_PLAIN = re.compile(r"/[^/?#%\0-\x1f\x7f][^?#%\0-\x1f\x7f]*")  # kubelets of 1.38 take no other

Attach = Callable[[grpc.Server], None]  # adds one service to a server that has not started


class SocketPaths(Struct, frozen=True, kw_only=True):
    """The sockets between this driver and the kubelet, which sees the same paths."""

    data_directory: Path
    service: Path
    registration: Path


def socket_paths(*, plugins: Path, registrar: Path, pod_uid: str = "") -> SocketPaths:
    """Return the sockets' paths below the kubelet's `plugins` and `plugins_registry` folders.

    With a `pod_uid`, two instances can serve side by side during a rolling update (kubelet 1.33 and
    newer): every instance then has its own sockets, with the names of Kubernetes' kubeletplugin,
    hashed if the plain name would be too long. Raises SetupError if a path is too long for a unix
    socket.
    """
    data = plugins / DRIVER_NAME
    registrations: tuple[str, ...] = (f"{DRIVER_NAME}-reg.sock",)
    services: tuple[str, ...] = ("dra.sock",)
    if pod_uid:
        registrations = (
            f"{DRIVER_NAME}-{pod_uid}-reg.sock",
            f"{DRIVER_NAME}-{_short(pod_uid, 8)}-reg.sock",
            f"dra-{_short(DRIVER_NAME + chr(0) + pod_uid, 16)}-reg.sock",
        )
        services = (f"dra-{pod_uid}.sock", f"dra-{_short(pod_uid, 8)}.sock")
    registration = _first_that_fits(registrar, registrations)
    service = _first_that_fits(data, services)
    for path, setting in (
        (service, "--kubelet-plugins-directory-path"),
        (registration, "--kubelet-registrar-directory-path"),
    ):
        if not _fits(path):
            raise SetupError(
                f"socket path {str(path)!r} is {len(os.fsencode(path))} bytes long; kubelets take "
                f"absolute ones of up to {MAX_SOCKET_PATH_BYTES}, without %, # and ?; set {setting}"
            )
    return SocketPaths(data_directory=data, service=service, registration=registration)


def _short(text: str, size: int) -> str:
    digest = hashlib.sha256(text.encode()).digest()[:size]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _first_that_fits(folder: Path, names: Sequence[str]) -> Path:
    """Return the first path that is not too long; the last one if all are."""
    return next((path for name in names if _fits(path := folder / name)), folder / names[-1])


def _fits(path: Path) -> bool:
    fits = len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES
    return fits and _PLAIN.fullmatch(str(path)) is not None


def remove_dead_sockets(paths: SocketPaths) -> tuple[Path, ...]:
    """Remove this driver's sockets on which nobody listens, and return which they were.

    A driver that was killed, or whose node lost power, leaves its sockets behind. If each pod has
    its own names, nobody would replace them, and the kubelet would try them forever. Our sockets
    appear only once they listen, so one that refuses a connection is dead.
    """
    registrations = paths.registration.parent.glob(f"{DRIVER_NAME}*-reg.sock")
    services = paths.service.parent.glob("dra*.sock")
    removed: list[Path] = []
    for path in sorted(path for path in (*registrations, *services) if _is_dead(path)):
        with suppress(OSError):  # the disk cannot be written
            path.unlink(missing_ok=True)
            removed.append(path)
    return tuple(removed)


def _is_dead(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a full backlog belongs to somebody who listens
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return path.is_socket()
        except OSError:
            return False
    return False


def is_live(path: Path) -> bool:
    """Tell whether a process listens on the socket at this path."""
    return path.is_socket() and not _is_dead(path)


def _identity_of(path: Path) -> tuple[int, int, int] | None:
    """Return what distinguishes our socket file from another process's at the same path."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


class SocketServer:
    """One gRPC server on unix sockets, which can be restored if their files are removed.

    One for all sockets, because each server of gRPC's wakes a thread ten times a second.
    """

    def __init__(
        self, paths: Sequence[Path], services: Sequence[Attach], *, name: str, workers: int
    ) -> None:
        """Take what is needed; nothing happens before `start`.

        `workers` is how many calls run at once of methods that have no threads of their own.
        """
        self.paths = tuple(paths)
        self._services = tuple(services)
        self._name = name
        self._workers = workers
        self._server: grpc.Server | None = None
        self._identities: dict[Path, tuple[int, int, int] | None] = {}

    def start(self) -> None:
        """Listen, then let the sockets appear in their order, with mode 0600.

        Stale sockets are replaced. Raises TransientError if a disk is full or cannot be written,
        and SetupError if a folder cannot be created or written, or has another kind of file there.
        No socket that it made is there then.
        """
        hidden: dict[Path, Path] = {}
        made: list[Path] = []
        server: grpc.Server | None = None
        path = self.paths[0]
        try:
            for path in (each for each in self.paths if not self.is_taken_over(each)):
                hidden[path] = _hidden(path)
            server = self._listen(hidden)
            for path, name in hidden.items():
                name.chmod(0o600)
                identity = _identity_of(name)
                name.replace(path)
                self._identities[path] = identity
                made.append(path)
        except (OSError, SetupError) as error:
            if server is not None:
                server.stop(0)
            for name in hidden.values():
                with suppress(OSError):
                    name.unlink(missing_ok=True)
            for each in made:
                self.leave(each)
            if isinstance(error, SetupError):
                raise
            raise _not_made(path, error) from error
        self._server = server

    def _listen(self, hidden: Mapping[Path, Path]) -> grpc.Server:
        pool = futures.ThreadPoolExecutor(self._workers, thread_name_prefix=self._name)
        server = grpc.server(pool, maximum_concurrent_rpcs=MOST_CALLS)
        for attach in self._services:
            attach(server)
        for path, name in hidden.items():
            try:
                server.add_insecure_port(f"unix:{name}")
            except RuntimeError as error:
                raise SetupError(f"socket {path} cannot be bound: {error}") from error
        server.start()
        return server

    def is_missing(self) -> bool:
        """Tell whether a socket's file is gone, and not replaced by another process."""
        return self._server is not None and not all(path.is_socket() for path in self.paths)

    def is_taken_over(self, path: Path) -> bool:
        """Tell whether another process has replaced a socket by its own."""
        return self._server is not None and path.is_socket() and not self.is_ours(path)

    def is_ours(self, path: Path) -> bool:
        """Tell whether the file at the path is the socket that this server made."""
        identity = self._identities.get(path)
        return identity is not None and _identity_of(path) == identity

    def renew(self, grace: float) -> None:
        """Serve on new sockets at the same paths; the old ones' calls get `grace` seconds."""
        old = self._server
        self.start()
        if old is not None:
            old.stop(grace)

    def leave(self, path: Path) -> None:
        """Remove a socket if it is ours; calls on its connections are answered as before."""
        if self.is_ours(path):
            with suppress(OSError):  # the next driver removes it, as after a kill
                path.unlink(missing_ok=True)
        self._identities.pop(path, None)

    def stop(self, grace: float) -> threading.Event:
        """Remove the sockets, refuse new calls, give running ones `grace` seconds.

        Returns an event that is set when all calls have ended. Stopping twice is fine.
        """
        for path in self.paths:
            self.leave(path)
        server, self._server = self._server, None
        if server is None:
            done = threading.Event()
            done.set()
            return done
        return server.stop(grace)


def _hidden(path: Path) -> Path:
    """Return a hidden name beside a socket's, in a folder that is there and can be written.

    Raises OSError, and SetupError if something else than a socket is at the path.
    """
    # Like the kubelet's own folders; what is inside is for root alone.
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise SetupError(f"{path} is in the way and is not a socket; remove it")
    # Never longer than the name it stands in for, so that it fits where that one fits.
    hidden = path.with_name(f".{secrets.token_hex(3)}")
    hidden.touch(exist_ok=False)  # gRPC would not say why it cannot
    hidden.unlink()
    return hidden


def _not_made(path: Path, error: OSError) -> DriverError:
    reason = f"socket {path} cannot be made: {error.strerror or error}"
    if is_of_the_disk(error):
        return TransientError(
            f"{reason}; free space on its disk, or see dmesg for why the disk cannot be written, "
            "and mount it again; this is retried"
        )
    return SetupError(
        f"{reason}; check that its folder is the kubelet's, mounted at the same path and writable"
    )
