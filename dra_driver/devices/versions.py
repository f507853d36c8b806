"""Versions: of CUDA and of compute capabilities, and of the kernel driver that runs.

NVML gives the first two as numbers. The kernel driver says its own in /proc/driver/nvidia/version,
at any time and whatever libraries are installed; NVML says the same where it can be asked.
"""

import re
from pathlib import Path

# NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 ...
# NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build ...
_KERNEL_MODULE = re.compile(r"^NVRM version:.*?Kernel Module\b.*?\s(\d+(?:\.\d+)+)\b", re.MULTILINE)


def dotted(version: tuple[int, int]) -> str:
    """Return a version as people write it, such as 12.4."""
    major, minor = version
    return f"{major}.{minor}"


def running_driver(proc: Path) -> str | None:
    """Return the version of the kernel driver that runs, None if /proc does not say it."""
    try:
        # Asked for each claim that is prepared; to read a text takes twice as long.
        with (proc / "driver/nvidia/version").open("rb", buffering=0) as file:
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    match = _KERNEL_MODULE.search(text)
    return match[1] if match else None
