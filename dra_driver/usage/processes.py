"""Processes of the node by PID, as procfs has them: name, parent, control group, start.

In: where procfs is mounted. Out: `SeenProcess`. PIDs are given anew when one has ended, so all
is read through one open folder of procfs, which is that process's and no other's; and who began
after NVML was asked is not who it meant. A name is a tenant's text, and is made harmless.
"""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dra_driver.devices.holders import harmless
from dra_driver.usage.groups import LONGEST_TEXT, PodProcess, pod_process

_LONGEST_STAT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenProcess:
    """A process. `start_ticks` is when it began, since the boot; `pod` is None for no pod's."""

    pid: int
    parent: int
    name: str
    start_ticks: int
    pod: PodProcess | None


class Processes:
    """Looks processes up. For any thread."""

    def __init__(self, *procs: Path) -> None:
        """Take where procfs may be mounted; the first that is one of this process is read."""
        self._proc = next((one for one in procs if _is_procfs(one)), Path("/proc"))

    def see(self, pid: int, *, before: int) -> SeenProcess | None:
        """Return a process; None if it has ended, or began later than that many ticks.

        Of a process that may not be looked at, nothing is known but that it is there.
        """
        try:
            folder = os.open(self._proc / str(pid), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return _seen(folder, pid, before)
        except (OSError, ValueError, IndexError):
            return None  # it has ended meanwhile
        finally:
            os.close(folder)

    def has_those_of_the_host(self, host_proc: Path | None = None) -> bool:
        """Tell whether the PIDs of this process are the host's.

        `host_proc` is where the host's own procfs may be mounted; without it the PID namespace has
        to be the kernel's first.
        """
        with suppress(OSError):
            own = (self._proc / "self/ns/pid").stat().st_ino
            if host_proc is not None:
                with suppress(OSError):
                    return own == (host_proc / "1/ns/pid").stat().st_ino
            return own == _FIRST_PID_NAMESPACE
        return False


_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO (include/linux/proc_ns.h)."""


def now_ticks() -> int:
    """Return the time since the boot in the unit of processes' starts."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def _seen(folder: int, pid: int, before: int) -> SeenProcess | None:
    stat = _read(folder, "stat", _LONGEST_STAT)
    # The name is in brackets, and may have brackets and blanks in it.
    name, _, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()
    start_ticks = int(fields[19])
    if start_ticks > before:
        return None
    return SeenProcess(
        pid=pid,
        parent=int(fields[1]),
        name=harmless(name),
        start_ticks=start_ticks,
        pod=pod_process(_read(folder, "cgroup", LONGEST_TEXT)),
    )


def _read(folder: int, name: str, most: int) -> str:
    """Read a file of a process; what is longer than it can be is cut, and so says nothing."""
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        data = b""
        while len(data) < most and (more := os.read(descriptor, most - len(data))):
            data += more
    finally:
        os.close(descriptor)
    return data.decode(errors="replace")


def _is_procfs(folder: Path) -> bool:
    return (folder / "self").is_symlink()
