"""Finds a process again that an earlier program started, and ends it.

A process id alone may have been given to another process since, so its start time is kept with it
(in clock ticks since boot).
"""

import os
import signal
import time
from pathlib import Path

from cluster.processes import running

GRACE_SECONDS = 15


def write_pid_file(path: Path, pid: int) -> None:
    """Note a running process."""
    path.write_text(f"{pid} {_start_time(pid)}\n")


def end_process(path: Path) -> None:
    """End the noted process if it is still that one: SIGTERM, and SIGKILL after some seconds."""
    try:
        pid, started = (int(word) for word in path.read_text().split())
    except (FileNotFoundError, ValueError):
        return
    end = time.monotonic() + GRACE_SECONDS
    number = signal.SIGTERM
    while _start_time(pid) == started:
        os.kill(pid, number)
        time.sleep(0.2)
        if time.monotonic() > end:
            number = signal.SIGKILL
    path.unlink(missing_ok=True)


def _start_time(pid: int) -> int | None:
    process = running(pid)
    return process.started if process else None
