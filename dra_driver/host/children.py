"""Waits for a child process for a bounded time."""

import os
import select
import subprocess

from dra_driver.host.turns import waiting


def ends_within(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Wait for the end of a process by its descriptor; Popen would poll, less and less often."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True  # another thread has waited for it already
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        with waiting():
            return bool(poll.poll(max(0.0, seconds) * 1000))
    finally:
        os.close(descriptor)
