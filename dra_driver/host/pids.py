"""Which PIDs this process sees: procfs has those of the PID namespace that it was mounted in."""

from contextlib import suppress
from pathlib import Path

_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO (include/linux/proc_ns.h)."""


def first_procfs(*folders: Path) -> Path:
    """Return the first folder that is a procfs of this process; /proc if none is."""
    return next((proc for proc in folders if (proc / "self").is_symlink()), Path("/proc"))


def has_pids_of_host(proc: Path, host_proc: Path | None = None) -> bool:
    """Tell whether the PIDs of this process are the host's.

    `host_proc` is where the host's own procfs may be mounted; without it the PID namespace has to
    be the kernel's first one.
    """
    with suppress(OSError):
        own = (proc / "self/ns/pid").stat().st_ino
        if host_proc is not None:
            with suppress(OSError):
                return own == (host_proc / "1/ns/pid").stat().st_ino
        return own == _FIRST_PID_NAMESPACE
    return False
