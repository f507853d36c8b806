"""What watches limits of memory on this node, put together (usage/watch.py)."""

from functools import partial
from pathlib import Path

from dra_driver.claims.report.later import Later
from dra_driver.devices.control_groups import find_hierarchy
from dra_driver.node.context import NodeContext
from dra_driver.node.gpus import NodeGpus
from dra_driver.node.shares import NodeShares
from dra_driver.node.usage import node_look
from dra_driver.sharing.pod_groups import PodGroups
from dra_driver.usage.ending import Ending
from dra_driver.usage.processes import Processes
from dra_driver.usage.watch import OverLimit, OverLimitWatch, tell


def over_limit_watch(
    context: NodeContext, gpus: NodeGpus, shares: NodeShares, later: Later
) -> OverLimitWatch:
    """Return the watch that reports containers above their memory limit; `later` posts Events."""
    settings, holdings = context.settings, context.holdings
    pods_of = context.pod_resources.pods
    return OverLimitWatch(
        node_look(gpus.session, context.roots, context.directory, pods_of, holdings.prepared),
        records=holdings.prepared,
        pods_of=pods_of,
        inventory=gpus.watcher,
        what=OverLimit(of_node=settings.over_limit, of_resource=shares.over_limit),
        # By the kernel's own word: what is read here is ended.
        end=Ending(PodGroups(find_hierarchy(settings.cgroup_root)), Processes(Path("/proc"))),
        tell=partial(tell, context.events, later),
        count=context.metrics.over_limit,
        clock=context.clock,
    )
