"""A process that has NVML open, as DCGM has, and with it some of a simulated machine's GPUs."""

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
def holding(root: Path, *minors: int, name: str = "dcgm-exporter") -> Iterator[int]:
    """Have GPUs of the machine below `root` open, by minor number; yield the process's PID.

    Raises:
        TestbedError: NVML did not open.
    """
    (library,) = root.glob("usr/lib/**/libnvidia-ml.so.1")
    with tempfile.TemporaryDirectory() as folder:
        for node in ("nvidiactl", *(f"nvidia{minor}" for minor in minors)):
            (Path(folder) / node).symlink_to(root / "dev" / node)
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, name, library],
            env=os.environ | {"NVML_SIMULATOR_DEV": folder},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            if process.stdout is None or process.stdout.readline() != "0\n":
                raise TestbedError(f"NVML at {library} did not open")
            yield process.pid
            process.kill()
