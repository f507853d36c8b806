"""Who has a GPU open: the processes of the node that have its device node open.

`/proc/<pid>/fd` has a link for each open file, with the path by which the process opened it
(proc_pid_fd(5)). A pod sees the host's processes only in the host's procfs, which is available if
the root of the host or of a driver container is mounted. NVML names only processes that compute,
but processes that only monitor a GPU keep it open as well.

Only the links are read, never the files behind them, which may be on a tenant's own file server
that never answers. A process's name is text from a tenant, so it is made harmless.
"""

import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

_LONGEST_NAME = 32
_UNUSUAL = re.compile(r"[^A-Za-z0-9._:/@+-]")
_FRESH_SECONDS = 1.0


class Holder(Struct, frozen=True, kw_only=True, order=True):
    """A process that has a GPU open, with its PID on the host and the name it gave itself."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (PID {self.pid})"


class Holders:
    """Finds the processes that have a GPU open. For any thread.

    The first of `procs` that is a procfs is read, so the host's comes first. `devs` are the paths
    where processes of the node may see device nodes. The clock is monotonic, in seconds.
    """

    def __init__(
        self,
        procs: Sequence[Path],
        devs: Iterable[Path],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.procs = tuple(procs)
        self._node = re.compile(
            f"(?:{'|'.join(re.escape(str(dev)) for dev in devs)})/nvidia([0-9]+)"
        )
        self._clock = clock
        self._lock = threading.Lock()
        self._looked = -math.inf
        self._found: Mapping[int, tuple[Holder, ...]] = {}

    def of(self, minor: int) -> tuple[Holder, ...]:
        """Return the other processes that have /dev/nvidiaN open, sorted by PID.

        The answer is at most a second old. It is empty if processes cannot be seen.
        """
        with self._lock:
            if self._clock() - self._looked > _FRESH_SECONDS:
                self._found = self._look()
                self._looked = self._clock()
            return self._found.get(minor, ())

    def _look(self) -> Mapping[int, tuple[Holder, ...]]:
        for proc in self.procs:
            with suppress(OSError):
                own = str((proc / "self").readlink())  # this process's PID in this procfs
                return self._look_in(proc, own)
        return {}

    def _look_in(self, proc: Path, own: str) -> Mapping[int, tuple[Holder, ...]]:
        by_minor: dict[int, list[Holder]] = {}
        for pid in sorted(filter(str.isdecimal, _names(proc)), key=int):
            minors = set() if pid == own else self._opened(f"{proc}/{pid}/fd")
            for minor in minors:
                by_minor.setdefault(minor, []).append(Holder(pid=int(pid), name=_name(proc / pid)))
        return {minor: tuple(holders) for minor, holders in by_minor.items()}

    def _opened(self, folder: str) -> set[int]:
        """Return the minor numbers of the GPUs that a process's folder of links shows as open."""
        minors = set()
        for number in _names(folder):
            with suppress(OSError):
                path = os.readlink(f"{folder}/{number}")  # noqa: PTH115 (there are thousands)
                if match := self._node.fullmatch(path):
                    minors.add(int(match[1]))
        return minors


def _names(folder: str | Path) -> list[str]:
    """Return the names in a folder of procfs; none if the process has ended or is not readable."""
    try:
        return os.listdir(folder)  # noqa: PTH208 (names are what is wanted)
    except OSError:
        return []


def _name(process: Path) -> str:
    try:
        name = (process / "comm").read_bytes().decode(errors="replace").strip()
    except OSError:
        name = ""
    return harmless(name)


def harmless(name: str) -> str:
    """Return a process's name made safe to show to people: short, without unusual characters."""
    return _UNUSUAL.sub("?", name)[:_LONGEST_NAME] or "a process without a name"
