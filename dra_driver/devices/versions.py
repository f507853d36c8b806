"""Versions of CUDA, of compute capabilities, and of the running GPU driver.

NVML gives the first two as numbers. The GPU driver's kernel module reports its own version in
/proc/driver/nvidia/version at any time, whatever libraries are installed; NVML gives the same one.
"""

import os
import re
from functools import lru_cache
from pathlib import Path

# NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 ...
# NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build ...
_KERNEL_MODULE = re.compile(r"^NVRM version:.*?Kernel Module\b.*?\s(\d+(?:\.\d+)+)\b", re.MULTILINE)

_LONGEST = 65536


def dotted(version: tuple[int, int]) -> str:
    """Return a version as people write it, such as 12.4."""
    major, minor = version
    return f"{major}.{minor}"


def running_driver(proc: Path) -> str | None:
    """Return the version of the running GPU driver; None if /proc does not say."""
    try:  # by the cheapest calls, because it is asked for each claim that is prepared
        file = os.open(f"{proc}/driver/nvidia/version", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _version_in(os.read(file, _LONGEST))
        finally:
            os.close(file)
    except OSError:
        return None


@lru_cache(maxsize=1)
def _version_in(said: bytes) -> str | None:
    match = _KERNEL_MODULE.search(said.decode(errors="replace"))
    return match[1] if match else None
