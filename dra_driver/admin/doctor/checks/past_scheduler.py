"""Pods that something has put on a node past the scheduler. Pure: objects in, what to tell out.

The kubelet starts a pod that asks for GPUs by a resource name, and does not look whether anybody
has allocated them, where a DeviceClass is behind the name (KEP-5004): it runs without, in silence.
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
    """Judge the pods of nodes with GPUs; `unseen` is the number of such nodes left out."""
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
