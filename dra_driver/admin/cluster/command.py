"""`dra-driver status --cluster`: asks the API server for what the cluster offers, and shows it.

In: how to reach the API server, and which node is asked about. Out: the text to print. Slices,
claims and events are read, page by page, and nothing is written. Slices are asked for by driver and
node, claims are not, because the API selects them by name and namespace only. They come second, so
that of what happens between the two lists nothing that is given out counts as free.
"""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from msgspec.structs import replace

from dra_driver.admin.api.allocations import allocations_in
from dra_driver.admin.api.reads import Reads, read_all
from dra_driver.admin.api.refusals import refusals
from dra_driver.admin.cluster.pools import read_pools
from dra_driver.admin.cluster.usage import ClusterUsage, usage_of
from dra_driver.admin.cluster.view import report, table
from dra_driver.admin.output import WideOutput, for_programs, is_for_programs
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.errors import SetupError
from dra_driver.kube.connect import connect
from dra_driver.kube.resource import RESOURCE_CLAIMS, RESOURCE_SLICES


def shown(
    kubeconfig: Path | None,
    context: str,
    *,
    node: str,
    output: WideOutput,
    environment: Mapping[str, str],
) -> str:
    """Return what is to be printed of a node, or of all of them where it is empty."""
    with closing(connect(kubeconfig, context, environment=environment)) as client:
        usage = look(client, node=node)
    if is_for_programs(output):
        return for_programs(report(usage), output)
    return table(usage, wide=output == "wide")


def look(api: Reads, *, node: str) -> ClusterUsage:
    """Return what is offered, used and free on one node, or with an empty name on all.

    Raises SetupError if this driver has published nothing there, UnavailableError if the API server
    cannot be reached, and ApiError if it refuses, for lack of a permission or of the API.
    """
    selector = f"spec.driver={DRIVER_NAME}" + (f",spec.nodeName={node}" if node else "")
    pools = read_pools(read_all(api, RESOURCE_SLICES, selector))
    if not pools:
        raise SetupError(_nothing_published(node))
    asked = {pool.name for pool in pools}
    allocations = [
        allocation
        for claim in read_all(api, RESOURCE_CLAIMS)
        for allocation in allocations_in(claim, DRIVER_NAME)
        if not node or allocation.pool in asked
    ]
    pods = [
        (allocation.claim.partition("/")[0], user)
        for allocation in allocations
        for user in allocation.users
    ]
    refused = refusals(api, pods)
    return replace(usage_of(pools, allocations), refused=refused)


def _nothing_published(node: str) -> str:
    where, advice = "in this cluster", "and that this is the cluster you mean"
    if node:
        where, advice = f"for the node {node!r}", "and that the node's name is right"
    return (
        f"there is no ResourceSlice of the driver {DRIVER_NAME} {where}: a running driver has one "
        "even on a node without GPUs, so it does not run there or cannot publish; check its pods "
        f"and their logs (`kubectl get pods --all-namespaces --output wide`), {advice}"
    )
