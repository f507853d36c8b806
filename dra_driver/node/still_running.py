"""What asks the node whether pods still run with a claim, put together.

In: the kubelet, control groups and processes of the node. Out: an answer about a record
(claims/reconcile/still_running.py).
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dra_driver.claims.reconcile.still_running import PodHolder, StillRunning
from dra_driver.devices.control_groups import USUAL, find_hierarchy
from dra_driver.devices.holders import Holders
from dra_driver.devices.model import GpuUuid, Inventory
from dra_driver.kubelet.pod_resources import PodResources
from dra_driver.sharing.pod_groups import PodGroups

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_V1 = "memory"
"""A controller of cgroup v1 in which the kubelet makes a group for each pod."""


def still_running(
    resources: PodResources,
    *,
    cgroup_root: Path | None,
    inventory: Callable[[], Inventory],
    holders: Holders,
) -> StillRunning:
    """Return what asks this node."""
    hierarchies = (find_hierarchy(cgroup_root), (cgroup_root or USUAL) / _V1)

    def holders_of(uuid: GpuUuid) -> Iterator[PodHolder]:
        # Only for a claim that is gone while its pod may run.
        from dra_driver.usage.processes import Processes, now_ticks  # noqa: PLC0415

        processes = Processes(*holders.procs)
        for gpu in inventory().gpus:
            for holder in holders.of(gpu.minor) if gpu.uuid == uuid else ():
                now = now_ticks()
                seen = processes.see(holder.pid, before=now)
                if seen is not None and seen.pod is not None:
                    age = (now - seen.start_ticks) / _TICKS_PER_SECOND
                    # The file of a record has the time of day.
                    began = time.time() - age  # noqa: TID251
                    yield PodHolder(process=holder, pod_uid=seen.pod.pod_uid, began=began)

    return StillRunning(
        pods_with=resources.names, groups=map(PodGroups, hierarchies), holders=holders_of
    )
