"""Other drivers with this name on this node, and which of them the kubelet calls.

In the driver's folder, `registered` has a file for each running driver of ours. If there are
several, the kubelet calls the one that it registered last (k8s.io/kubernetes
pkg/kubelet/cm/dra/plugin), so only that one publishes. A driver without a file, such as NVIDIA's,
is never worked against. A file is no proof that a driver runs: its socket must accept connections.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dra_driver.errors import UnavailableError
from dra_driver.host.files import read_whole, write_whole
from dra_driver.kubelet.sockets import is_live

FOLDER = "registered"
"""Below the driver's folder: a file for each running driver, named like its service socket.

It has the nanoseconds since boot at which the kubelet registered it, or 0.
"""


class Rivals:
    """What one driver, known by its service socket, knows about the others on its node."""

    def __init__(self, service: Path) -> None:
        self._service = service
        self._folder = service.parent / FOLDER
        self._is_here = False
        self._registered_at = 0

    def appear(self) -> None:
        """Tell others that this driver is about to listen; forget those that have ended."""
        self._is_here = True
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in self._folder.iterdir():
                if not is_live(self._service.with_name(path.name)):
                    path.unlink(missing_ok=True)
        self._note()

    def registered(self) -> None:
        """Note that the kubelet has just registered this driver."""
        self._registered_at = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._note()

    def leave(self) -> None:
        """Forget this driver, unless another one has taken its place."""
        self._is_here = False
        if not is_live(self._service):
            with suppress(OSError):
                (self._folder / self._service.name).unlink(missing_ok=True)

    def check_may_publish(self) -> None:
        """Raise UnavailableError if another driver of this node publishes."""
        if theirs := self.foreign():
            raise UnavailableError(
                f"NVIDIA's DRA driver runs on this node, and listens on {theirs}: remove it, and "
                "this one publishes"
            )
        for path in self._others():
            if (self._since(path) or 0) > self._registered_at:
                raise UnavailableError(
                    f"the driver that the kubelet registered last publishes, and listens on {path}"
                )

    def foreign(self) -> Path | None:
        """Return the socket on which NVIDIA's DRA driver listens, if it runs here."""
        return next((path for path in self._others() if self._since(path) is None), None)

    def _others(self) -> Iterator[Path]:
        """Yield the service sockets on which others listen, first the one in this one's place."""
        sockets = set(self._service.parent.glob("dra*.sock")) - {self._service}
        for path in (*([] if self._is_here else [self._service]), *sorted(sockets)):
            if is_live(path):
                yield path

    def _since(self, service: Path) -> int | None:
        """Return when the kubelet registered a driver, 0 if it has not; None for a foreign one."""
        with suppress(OSError, ValueError):
            contents = read_whole(self._folder / service.name)
            return None if contents is None else int(contents[0])
        return None

    def _note(self) -> None:
        """Write this driver's file; without it others mistake the driver for NVIDIA's."""
        note = self._folder / self._service.name
        with suppress(OSError):  # the disk is full
            write_whole(note, b"%d" % self._registered_at, mode=0o600, durable=False)
