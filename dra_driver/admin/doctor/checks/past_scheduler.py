"""Pods that were put on a node without the scheduler. Pure: objects in, findings out.

If a pod asks for GPUs by a resource name with a DeviceClass, the kubelet starts it without checking
that anybody has allocated them (KEP-5004): it runs without GPUs, and without a message.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from dra_driver.admin.api.nodes import Node
from dra_driver.admin.doctor.checks.finding import Seen, info, ok, warning
from dra_driver.admin.explain.demand import BYPASSED_ADVICE, bypassing, of_pod
from dra_driver.fields import Object
from dra_driver.words import count

_MOST_PODS = 20


def judged(
    pods: Iterable[Object], nodes: Mapping[str, Node], classes: Sequence[Object], *, unseen: int
) -> Iterator[Seen]:
    """Check the pods of nodes with GPUs; `unseen` is the number of such nodes left out."""
    reasons = []
    for pod in pods:
        demand = of_pod(pod, lambda _: None, lambda _: None, classes)
        if why := bypassing(demand, nodes.get(demand.on_node)):
            reasons.append(f"{demand.name}: {why}")
    for reason in reasons[:_MOST_PODS]:
        yield warning(reason, BYPASSED_ADVICE)
    if len(reasons) > _MOST_PODS:
        yield warning(f"{count(len(reasons) - _MOST_PODS, 'more pod')} like these", BYPASSED_ADVICE)
    if not reasons:
        yield ok("no pod on a node with GPUs goes past the scheduler")
    if unseen:
        yield info(f"{count(unseen, 'more node')} not looked at", "--node-name NODE shows one")
