"""The processes below one, in any session or group.

Complete for a process that adopts orphans (prctl PR_SET_CHILD_SUBREAPER, Linux): when its child
ends, the children of that become its own. Read from /proc, which has every process's parent.
"""

import os
import signal
from collections import defaultdict
from contextlib import suppress
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Return the ids of all processes below one."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # After the name, which may have spaces and brackets of its own: state, parent.
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] != "Z":
                children[int(fields[1])].append(int(entry.parent.name))
    pids: list[int] = []
    below = list(children[pid])
    while below:
        child = below.pop()
        pids.append(child)
        below += children[child]
    return pids


def signal_descendants(pid: int, number: signal.Signals) -> None:
    """Send a signal to all processes below one."""
    for descendant in descendants(pid):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(descendant, number)
