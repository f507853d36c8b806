"""What the published ResourceSlices mean for pods with GPUs. Pure: slices in, findings out.

A slice of this driver is recognised by its name, which begins with its number in the pool and ends
with its node's name; its pool has the node's name, too. NVIDIA's DRA driver publishes with the same
driver name, and lets the API server generate names.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from dra_driver.admin.api.slices import TaintRule, readable_slices
from dra_driver.admin.doctor.checks.cluster_checks import INSTALL_AGAIN
from dra_driver.admin.doctor.checks.finding import Seen, error, ok, warning
from dra_driver.admin.explain.pools import Pools
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.host.words import count, named
from dra_driver.kube.fields import Object, at, objects, text
from dra_driver.kube.server_version import version_numbers
from dra_driver.slices.consumable import ALLOWS_MULTIPLE
from dra_driver.slices.offer.mig import COST_BEFORE_1_37, has_cheap_counters
from dra_driver.slices.publish.publication import CONSUMES_COUNTERS

_OUR_NAME = re.compile(
    rf"[0-9a-f]{{5}}-(?:[0-9a-f]{{8}}-)?{re.escape(DRIVER_NAME)}-(?P<node>.*)", re.DOTALL
)


_COUNTS_PARTS = (1, 36, 2)
"""The first version whose scheduler counts devices with parts (kubernetes#139211)."""


def published(slices: Sequence[Object], node: str) -> Iterator[Seen]:
    """Check whether GPUs are published."""
    pools = Pools(readable_slices(slices)).by_node()
    where = f"for node {node}" if node else "in this cluster"
    if not pools:
        yield error(
            f"there is no ResourceSlice of {DRIVER_NAME} {where}",
            "find out why the driver does not run there or cannot publish: check its pods and "
            "their logs",
        )
        return
    full = [(node or pool.name, len(pool.devices)) for node, pool in pools if pool.devices]
    if full:
        yield ok(
            f"{count(sum(number for _, number in full), 'device')} offered by "
            f"{count(len(full), 'node')}: {named(node for node, _ in full)}"
        )
    if empty := [node or pool.name for node, pool in pools if not (pool.devices or pool.fault)]:
        yield warning(
            f"{named(empty)}: nothing is offered",
            "run `dra-driver doctor` or `dra-driver inspect` on the node, or see its driver's "
            "log. The reason may be a missing GPU driver, GPUs that do not answer, or a device "
            "plugin that gives out the same GPUs",
        )
    for _, pool in pools:
        if pool.fault:
            yield warning(
                f"the scheduler uses no device of pool {pool.name}: {pool.problem}",
                "if the driver is publishing now, wait a moment; else see its log",
            )


def counters_cost(slices: Sequence[Object], version: str) -> Iterator[Seen]:
    """Check what counters cost this version's scheduler, and whether it counts them all."""
    forgotten = sorted(
        {
            text(each, "spec", "nodeName")
            for each in slices
            for device in objects(each, "spec", "devices")
            if device.get(ALLOWS_MULTIPLE) and device.get(CONSUMES_COUNTERS)
        }
    )
    patched = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version)
    if forgotten and patched and tuple(map(int, patched.groups())) < _COUNTS_PARTS:
        yield warning(
            f"Kubernetes {version} can give out a GPU of {named(forgotten)} twice: its scheduler "
            "forgets the counters of a device of which claims have parts (kubernetes#139034)",
            f"upgrade to Kubernetes {'.'.join(map(str, _COUNTS_PARTS))}, or set --consumable-shares"
            " only where no counters are published (--mig auto or existing, no --memory-counters)",
        )
    counting = sorted(
        {text(each, "spec", "nodeName") for each in slices if at(each, "spec", "sharedCounters")}
    )
    if not counting:
        yield ok("no node publishes counters")
    elif has_cheap_counters(version_numbers(version)):
        yield ok(f"{count(len(counting), 'node')} with counters, on Kubernetes {version}")
    else:
        yield warning(
            f"{count(len(counting), 'node')} with counters: {named(counting)}; {COST_BEFORE_1_37}",
            "set --mig auto or existing, --whole-gpus-beside-shares auto and no --memory-counters, "
            "as they are by default; or upgrade to Kubernetes 1.37",
        )


def taint_rules(things: Iterable[Object]) -> Iterator[Seen]:
    """Check whether a DeviceTaintRule keeps pods from all GPUs (kubernetes/kubernetes#141422)."""
    rules = [rule for thing in things if (rule := TaintRule.of(thing)) and rule.taint.blocks]
    broad = [
        rule
        for rule in rules
        if rule.driver in ("", DRIVER_NAME) and not rule.pool and not rule.device
    ]
    for rule in broad:
        whose = f"of {rule.driver}" if rule.driver else "of every driver"
        ends = ", and pods that have one are evicted" if rule.taint.effect == "NoExecute" else ""
        yield warning(
            f"DeviceTaintRule {rule.taint.rule} taints every device {whose} ({rule.taint}): pods "
            f"get none unless their claims tolerate it{ends}",
            "name driver, pool and device in its deviceSelector, or delete it, unless that is "
            f"intended: kubectl edit devicetaintrule {rule.taint.rule}",
        )
    if not broad:
        yield ok(f"none of {count(len(rules), 'DeviceTaintRule')} taints all GPUs")


def of_others(slices: Sequence[Object]) -> Iterator[Seen]:
    """Check whether another driver publishes with the same name."""
    others: dict[str, list[str]] = defaultdict(list)
    for other in slices:
        name = text(other, "metadata", "name")
        if not _OUR_NAME.fullmatch(name):
            others[text(other, "spec", "nodeName") or "no single node"].append(name)
    for node, names in sorted(others.items()):
        yield error(
            f"another driver publishes as {DRIVER_NAME} for {node}: {named(names)}",
            "remove it from that node (probably NVIDIA's DRA driver); if its slices stay, remove "
            "them by kubectl delete resourceslice",
        )
    if not others:
        yield ok(f"all {count(len(slices), 'slice')} of {DRIVER_NAME} are this driver's")


def in_others_names(slices: Iterable[Object], nodes: Iterable[Object], node: str) -> Iterator[Seen]:
    """Check whether slices of one node have the name or the pool of another.

    Slices and Nodes are those of all nodes; `node` is the requested one, empty for all.
    """
    known = {text(each, "metadata", "name") for each in nodes}
    for slice_ in slices:
        name, owner = text(slice_, "metadata", "name"), text(slice_, "spec", "nodeName")
        pool = text(slice_, "spec", "pool", "name")
        match = _OUR_NAME.fullmatch(name)
        named_after = match["node"] if match and match["node"] in known else owner
        if node and node not in {owner, pool, named_after}:
            continue
        if pool != owner:
            what = (
                f"uses the pool of {pool}: schedulers and the eviction by taints can take its "
                "devices for those of that node"
            )
        elif named_after != owner:
            what = f"has the name of a slice of {named_after}, where this driver uses another name"
        else:
            continue
        yield error(
            f"ResourceSlice {name} of {owner or 'no single node'} {what}",
            f"kubectl delete resourceslice {name}, and {INSTALL_AGAIN}, whose policy own-node "
            f"refuses such slices; no driver writes them, so find out who has credentials of "
            f"{owner or 'this cluster'}",
        )
