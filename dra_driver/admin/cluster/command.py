"""`dra-driver status --cluster`: asks the API server what the cluster offers, and shows it.

In: how to reach the API server, and which node to show. Out: the text to print. It reads slices,
claims and events page by page, and writes nothing. Slices are selected by driver and node, but
claims cannot be, because the API selects them only by name and namespace. They are read second, so
that nothing allocated between the two lists counts as free.
"""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from msgspec.structs import replace

from dra_driver.admin.api.allocations import allocations_in
from dra_driver.admin.api.reads import Reads, read_all
from dra_driver.admin.api.refusals import refusals
from dra_driver.admin.api.slices import readable_slices
from dra_driver.admin.cluster.usage import ClusterUsage, usage_of
from dra_driver.admin.cluster.view import report, table
from dra_driver.admin.connect import connect
from dra_driver.admin.explain.pools import Pools
from dra_driver.admin.output import WideOutput, for_programs, is_for_programs
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.errors import SetupError
from dra_driver.kube.resource import RESOURCE_CLAIMS, RESOURCE_SLICES


def shown(
    kubeconfig: Path | None,
    context: str,
    *,
    node: str,
    output: WideOutput,
    environment: Mapping[str, str],
) -> str:
    """Return the text for a node, or for all nodes if the name is empty."""
    with closing(connect(kubeconfig, context, environment=environment)) as client:
        usage = look(client, node=node)
    if is_for_programs(output):
        return for_programs(report(usage), output)
    return table(usage, wide=output == "wide")


def look(api: Reads, *, node: str) -> ClusterUsage:
    """Return what is offered, used and free on one node, or with an empty name on all.

    Raises SetupError if this driver has published nothing there, UnavailableError if the API server
    cannot be reached, and ApiError if it refuses, because a permission or the API is missing.
    """
    selector = f"spec.driver={DRIVER_NAME}" + (f",spec.nodeName={node}" if node else "")
    pools = Pools(readable_slices(read_all(api, RESOURCE_SLICES, selector))).by_node()
    if not pools:
        raise SetupError(_nothing_published(node))
    asked = {pool.name for _, pool in pools}
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
