"""Builds what finds out who uses this node's GPUs: from NVML, processes and claims.

In: NVML as the driver or a command has it open, and paths. Out: the look at the node, and the watch
on memory limits (usage/watch.py).
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from dra_driver.cdi.roots import Roots
from dra_driver.claims.model.claim import PodsOf
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.devices.control_groups import find_hierarchy
from dra_driver.devices.nvml.library import NvmlLibrary
from dra_driver.devices.session import DriverSession
from dra_driver.node.context import NodeContext
from dra_driver.node.gpus import NodeGpus
from dra_driver.node.shares import NodeShares
from dra_driver.node.sharing import sees_processes
from dra_driver.sharing.pod_groups import PodGroups
from dra_driver.usage.ending import Ending
from dra_driver.usage.node import NodeLook, known_below
from dra_driver.usage.processes import Processes
from dra_driver.usage.watch import OverLimit, OverLimitWatch, tell


def node_look(
    loads: NvmlLibrary | DriverSession,
    roots: Roots,
    directory: Path,
    pods_of: PodsOf,
    records: Callable[[], Iterable[ClaimRecord]],
) -> NodeLook:
    """Return the look at this node."""
    return NodeLook(
        loads,
        Processes(roots.proc, Path("/proc")),
        lambda: known_below(directory, roots.host_roots(), pods_of, records),
        sees_processes=sees_processes(roots),
    )


def over_limit_watch(context: NodeContext, gpus: NodeGpus, shares: NodeShares) -> OverLimitWatch:
    """Return the watch that reports containers above their memory limit."""
    settings, ledger = context.settings, context.ledger
    pods_of = context.pod_resources.pods
    return OverLimitWatch(
        node_look(gpus.session, context.roots, context.directory, pods_of, ledger.prepared),
        records=ledger.prepared,
        pods_of=pods_of,
        inventory=gpus.watcher,
        what=OverLimit(of_node=settings.over_limit, of_resource=shares.over_limit),
        # Only the kernel's own answer counts, because what is found here may be killed.
        end=Ending(PodGroups(find_hierarchy(settings.cgroup_root)), Processes(Path("/proc"))),
        tell=partial(tell, context.events),
        count=context.metrics.over_limit,
        clock=context.clock,
    )
