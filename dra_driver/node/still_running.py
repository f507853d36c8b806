"""Builds the check whether pods still run with a claim.

In: the kubelet, control groups and processes of the node. Out: an answer about a record
(claims/reconcile/still_running.py).
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dra_driver.cdi.roots import Roots
from dra_driver.claims.reconcile.still_running import PodHolder, StillRunning
from dra_driver.devices.control_groups import USUAL, find_hierarchy
from dra_driver.devices.holders import Holder, device_number, has_open
from dra_driver.devices.model import GpuUuid, Inventory
from dra_driver.host.process import first_procfs
from dra_driver.kubelet.pod_resources import PodResources
from dra_driver.sharing.pod_groups import PodGroups

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_V1 = "memory"
"""A controller of cgroup v1 in which the kubelet makes a group for each pod."""


def still_running(
    resources: PodResources,
    *,
    roots: Roots,
    cgroup_root: Path | None,
    inventory: Callable[[], Inventory],
) -> StillRunning:
    """Return the check for this node."""
    hierarchies = (find_hierarchy(cgroup_root), (cgroup_root or USUAL) / _V1)

    def holders_of(uuid: GpuUuid) -> Iterator[PodHolder]:
        proc = first_procfs(roots.driver / "proc", roots.proc)
        for gpu in inventory().gpus:
            number = device_number(roots.now().dev / f"nvidia{gpu.minor}")
            if gpu.uuid == uuid and number is not None:
                yield from _holders(proc, number)

    return StillRunning(
        pods_with=resources.names, groups=map(PodGroups, hierarchies), holders=holders_of
    )


def _holders(proc: Path, number: int) -> Iterator[PodHolder]:
    """Yield the processes in pods that have a device open."""
    # Imported late: it is needed only if a claim is gone while its pod may run.
    from dra_driver.usage.processes import Processes, now_ticks  # noqa: PLC0415

    processes = Processes(proc)
    for process in proc.iterdir():
        if process.name.isdecimal():
            now = now_ticks()
            seen = processes.see(int(process.name), before=now)
            if seen is not None and seen.pod is not None and has_open(process, number):
                # A record's file has wall-clock time.
                began = time.time() - (now - seen.start_ticks) / _TICKS_PER_SECOND  # noqa: TID251
                holder = Holder(pid=seen.pid, name=seen.name)
                yield PodHolder(process=holder, pod_uid=seen.pod.pod_uid, began=began)
