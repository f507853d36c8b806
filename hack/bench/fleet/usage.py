"""What processes have used, from /proc: CPU time and memory."""

import os
from collections.abc import Mapping
from pathlib import Path

from testbed.driver import resident_memory

MIB = 1024 * 1024
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int, proc: Path = Path("/proc")) -> float:
    """Return the CPU time that a process has used, in the kernel and out of it."""
    # The program's name is in parentheses and may hold anything, blanks too.
    fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_mib(pids: Mapping[str, int]) -> dict[str, float]:
    """Return the resident memory of processes by their names, in MiB."""
    return {name: round(resident_memory(pid)[0] / MIB, 1) for name, pid in pids.items()}
