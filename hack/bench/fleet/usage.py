"""What processes have used of the machine's memory."""

from collections.abc import Mapping

from testbed.driver import resident_memory

MIB = 1024 * 1024


def memory_mib(pids: Mapping[str, int]) -> dict[str, float]:
    """Return the resident memory of processes by their names, in MiB."""
    return {name: round(resident_memory(pid)[0] / MIB, 1) for name, pid in pids.items()}
