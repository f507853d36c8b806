"""A process that has NVML open, like DCGM, and so keeps a simulated machine's GPUs open."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.commands import TestbedError

_PROGRAM = """
import ctypes, sys
ctypes.CDLL(None).prctl(15, sys.argv[1].encode())  # PR_SET_NAME
print(ctypes.CDLL(sys.argv[2]).nvmlInit_v2(), flush=True)
sys.stdin.read()
"""


@contextmanager
def having_open(library: Path, **env: str) -> Iterator[int]:
    """Open NVML in another process; yield its PID. Raises TestbedError if that fails."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, "dcgm-exporter", library],
        env=os.environ | env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        if process.stdout is None or process.stdout.readline() != "0\n":
            raise TestbedError("another process could not open NVML")
        yield process.pid
        process.kill()


@contextmanager
def holding(root: Path, *minors: int) -> Iterator[int]:
    """Open GPUs of the machine below `root`, by minor number, for `having_open`."""
    (library,) = root.glob("usr/lib/**/libnvidia-ml.so.1")
    with tempfile.TemporaryDirectory() as folder:
        for node in ("nvidiactl", *(f"nvidia{minor}" for minor in minors)):
            (Path(folder) / node).symlink_to(root / "dev" / node)
        with having_open(library, NVML_SIMULATOR_DEV=folder) as pid:
            yield pid
