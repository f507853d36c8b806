"""Ends the processes of a container, as the kernel does when it is out of memory.

In: a container, and those of its processes that were seen on a GPU. Out: no process of the
container runs any more. With cgroup v2, its control group is ended as a whole (`cgroup.kill`, Linux
5.14): the kubelet has the kernel's out-of-memory killer end whole containers there, too
(memory.oom.group). Elsewhere the processes that were seen are ended, each through a descriptor of
its own (pidfd_open(2), Linux 5.3): a PID may be used again, so the process's start is compared.
"""

import os
import signal
from contextlib import suppress

from dra_driver.errors import DeviceError, DriverError
from dra_driver.host.words import named
from dra_driver.sharing.pod_groups import PodGroups
from dra_driver.usage.model import Process, User
from dra_driver.usage.processes import Processes, container_id


class EndingError(DriverError):
    """Processes could not be ended."""


class Ending:
    """Ends containers of this node. For any thread."""

    def __init__(self, groups: PodGroups, processes: Processes) -> None:
        self._groups = groups
        self._processes = processes

    def __call__(self, victim: User) -> None:
        """End the processes of a container; those that have ended by themselves are no error.

        Raises EndingError if some could not be ended.
        """
        if self._end_group(victim):
            return
        refused = [process.pid for process in victim.processes if not self._end(process)]
        if refused:
            raise EndingError(
                f"processes {named(refused)} cannot be ended, as the driver has not "
                "the right to: tell your cluster's admin (CAP_KILL, in the node's user namespace)"
            )

    def _end_group(self, victim: User) -> bool:
        """End a container's control group; False if it has none that can be ended as a whole."""
        try:
            containers = self._groups.containers(victim.pod_uid)
        except DeviceError:
            return False
        for folder in containers:
            if container_id(folder.name) == victim.container_id:
                with suppress(OSError):  # an older kernel, or the group is only read from here
                    (folder / "cgroup.kill").write_bytes(b"1")
                    return True
        return False

    def _end(self, process: Process) -> bool:
        """End one process; False if that is not allowed."""
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:
            descriptor = None  # it has ended, or the kernel is older
        try:
            now = self._processes.see(process.pid, before=process.start_ticks)
            if now is None or now.start_ticks != process.start_ticks:
                return True  # it has ended, and its PID may be another's
            if descriptor is None:
                os.kill(process.pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        finally:
            if descriptor is not None:
                os.close(descriptor)
        return True
