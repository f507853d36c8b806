"""Who has a GPU open: the processes of the node that have its device node open.

`/proc/<pid>/fd` has a link for each open file, with the path by which the process opened it
(proc_pid_fd(5)). A pod sees the host's processes only in the host's procfs, which is available if
the root of the host or of a driver container is mounted. NVML names only processes that compute,
but processes that only monitor a GPU keep it open as well.

`Holders` reads only the links, never the files behind them, which may be on a tenant's own file
server that never answers. A process's name is text from a tenant, so it is made harmless.
"""

import math
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from dra_driver.devices.control_groups import mounts
from dra_driver.host.files import entries_of, text_of

_LOCAL = frozenset(
    {"btrfs", "devtmpfs", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}
)
"""Types of file systems that may have device nodes, and always answer."""

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
        self._procs = tuple(procs)
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
        for proc in self._procs:
            with suppress(OSError):
                own = str((proc / "self").readlink())  # this process's PID in this procfs
                return self._look_in(proc, own)
        return {}

    def _look_in(self, proc: Path, own: str) -> Mapping[int, tuple[Holder, ...]]:
        by_minor: dict[int, list[Holder]] = {}
        for pid in sorted(filter(str.isdecimal, entries_of(proc)), key=int):
            minors = set() if pid == own else self._opened(f"{proc}/{pid}/fd")
            for minor in minors:
                name = harmless(text_of(f"{proc}/{pid}/comm").strip())
                by_minor.setdefault(minor, []).append(Holder(pid=int(pid), name=name))
        return {minor: tuple(holders) for minor, holders in by_minor.items()}

    def _opened(self, folder: str) -> set[int]:
        """Return the minor numbers of the GPUs that a process's folder of links shows as open."""
        minors = set()
        for number in entries_of(folder):
            with suppress(OSError):
                path = os.readlink(f"{folder}/{number}")  # noqa: PTH115 (there are thousands)
                if match := self._node.fullmatch(path):
                    minors.add(int(match[1]))
        return minors


def device_number(node: Path) -> int | None:
    """Return the number of a character device (st_rdev); None if there is no such node."""
    try:
        found = node.stat()
    except OSError:
        return None
    return found.st_rdev if stat.S_ISCHR(found.st_mode) else None


def has_open(process: Path, number: int) -> bool:
    """Tell whether a process has a device open, whatever its node is called there.

    Root in a container can make a node of any name. So files are looked at themselves, but only
    where they lie on the node: a tenant's own file server may never answer.
    """
    with suppress(OSError):
        local = {fields[0] for fields, kind in mounts(process / "mountinfo") if kind in _LOCAL}
        for name in entries_of(process / "fd"):
            with suppress(OSError):
                is_local = _mount(process / "fdinfo" / name) in local
                if is_local and device_number(process / "fd" / name) == number:
                    return True
    return False


def _mount(fdinfo: Path) -> str | None:
    """Return the ID of the mount that an open file is on (proc_pid_fdinfo(5))."""
    lines = fdinfo.read_text().splitlines()
    return next((line.split()[1] for line in lines if line.startswith("mnt_id:")), None)


def harmless(name: str) -> str:
    """Return a process's name made safe to show to people: short, without unusual characters."""
    return _UNUSUAL.sub("?", name)[:_LONGEST_NAME] or "a process without a name"
