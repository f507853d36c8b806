"""Moves MPS daemons to their own control group, so that they outlive the supervisor's container.

When a container runtime ends a container, it kills every process in its control group, even in
another session. So daemons are moved to the group `dra-driver-mps` at the top of the host's
hierarchy (cgroup v2) or of each of its hierarchies (v1). Servers that a daemon starts later are in
it, too. This needs the host's cgroup file system. Without the setting nothing is moved, which suits
a supervisor outside containers; with it, missing control groups are an error. The group has no
limits and may use every device, so nothing else may get into it. The kernel moves a PID, which may
have been reused. So a descriptor of the daemon (pidfd_open(2)) is held from before it is identified
until after the move, and tells whether the daemon has ended meanwhile.
"""

import os
from pathlib import Path

import structlog

from dra_driver.errors import DeviceError
from dra_driver.mps import processes
from dra_driver.mps.domain import Daemon

log = structlog.get_logger()

GROUP = "dra-driver-mps"
_PROCESSES = "cgroup.procs"
_KILL_SECONDS = 5.0
# In cgroup v1, groups of the controller cpuset accept no process before these are set.
_CPUSET = ("cpuset.cpus", "cpuset.mems")


class DaemonGroup:
    """The group for daemons. `root` is the host's /sys/fs/cgroup; None: daemons are not moved."""

    def __init__(self, root: Path | None) -> None:
        self._root = root

    def take(self, daemon: Daemon) -> None:
        """Move a daemon to the group. Raises DeviceError if it is missing or the kernel refuses."""
        if self._root is None:
            return
        found = hierarchies(self._root)
        if not found:
            raise DeviceError(
                f"no control groups below {self._root}, so the MPS daemon would end with this "
                "container; mount the host's /sys/fs/cgroup there, as the manifests do, or leave "
                "out --cgroup-root"
            )
        try:
            descriptor = os.pidfd_open(daemon.pid)
        except ProcessLookupError:
            return  # it has ended, and its worker notices that
        try:
            if not processes.is_alive(daemon):
                return
            for hierarchy in found:
                self._move(daemon, hierarchy)
            if processes.has_ended(descriptor):
                _end_stranger(daemon)
        finally:
            os.close(descriptor)

    def _move(self, daemon: Daemon, hierarchy: Path) -> None:
        group = hierarchy / GROUP
        try:
            group.mkdir(exist_ok=True)
            for name in _CPUSET:
                if (group / name).exists() and not (group / name).read_text().strip():
                    (group / name).write_text((hierarchy / name).read_text())
            (group / _PROCESSES).write_text(f"{daemon.pid}\n")
        except ProcessLookupError:
            return
        except OSError as error:
            raise DeviceError(
                f"cannot move the MPS daemon to {group}: {error.strerror}; mount the host's "
                "/sys/fs/cgroup read-write for --cgroup-root, or leave out that setting"
            ) from error


def hierarchies(root: Path) -> list[Path]:
    """Return the hierarchies of control groups: of version 1 one for each controller."""
    if (root / _PROCESSES).exists():
        return [root]
    # Links are second names of the same folders.
    folders = sorted(root.iterdir()) if root.is_dir() else []
    return [
        folder for folder in folders if not folder.is_symlink() and (folder / _PROCESSES).exists()
    ]


def _end_stranger(daemon: Daemon) -> None:
    """End the process that had a daemon's PID at the moment of the move, if there is one."""
    stranger = processes.daemon_at(daemon.pid)
    if stranger is not None and stranger != daemon:
        processes.kill([stranger], _KILL_SECONDS)
        log.error("process in the control group of mps ended", pid=stranger.pid)
