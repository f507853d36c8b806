"""The state of our DaemonSets' pods, by node, and pods that bypassed the scheduler. Pure.

A DaemonSet counts a pod as ready between two crashes, and does not report why a pod is not ready.
So each pod is checked, and so are nodes that should have one. Only the most severe finding about a
pod is reported.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from dra_driver.admin.api.nodes import Node
from dra_driver.admin.doctor.checks.finding import Seen, error, info, ok, warning
from dra_driver.admin.doctor.facts.installed import Installed
from dra_driver.admin.doctor.facts.pod_facts import Container, DaemonPod, Ended
from dra_driver.admin.explain.demand import BYPASSED_ADVICE, bypassing, of_pod
from dra_driver.host.words import count, named
from dra_driver.kube.fields import Object

_STARTS_WITHIN = timedelta(minutes=2)
"""A pod that is younger, or not ready for less, counts as starting."""

_ENDS_WITHIN = timedelta(minutes=2)
"""After its grace period; the kubelet needs some time."""

_RECENT = timedelta(hours=1)
_OF_A_DAY = timedelta(days=1)
_MANY_RESTARTS = 3
_ROLLS_WITHIN = timedelta(minutes=15)
"""After the last new pod: an evicted one with claims may take eleven minutes to end."""

_LONGEST_MESSAGE = 400
_MOST_PODS = 20
"""How many are reported one by one: a thousand nodes mostly have the same problem."""

_OUT_OF_MEMORY = "OOMKilled"

_OF_IMAGES = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName"})
_OF_CONFIG = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})


def pods(
    ds: Installed,
    present: Sequence[DaemonPod],
    *,
    down: Collection[str],
    labelled: Mapping[str, str],
    now: datetime,
) -> Iterator[Seen]:
    """Check the pods of one of our DaemonSets.

    `down` are nodes whose kubelets do not answer, `labelled` those labelled as GPU nodes, with
    their taints in words; `now` is by the API server's clock.
    """
    seen = [(pod.node, _judged(ds, pod, down, now)) for pod in present]
    good = [node for node, fault in seen if fault is None]
    bad = [(node, fault) for node, fault in seen if fault is not None]
    yield from (fault for _, fault in bad[:_MOST_PODS])
    if more := [node for node, _ in bad[_MOST_PODS:]]:
        yield error(
            f"{count(len(more), 'more pod')} of DaemonSet {ds.name} on {named(more)}",
            "dra-driver doctor --node-name NODE shows one node",
        )
    yield from _missing(ds, {pod.node for pod in present}, labelled)
    yield from _of_older_revisions(ds, present, now)
    if good:
        yield ok(f"DaemonSet {ds.name} runs on {named(good)}")


def _judged(ds: Installed, pod: DaemonPod, down: Collection[str], now: datetime) -> Seen | None:
    """Return the most severe finding about a pod; None if there is none."""
    what = f"pod {ds.namespace}/{pod.name} on node {pod.node or '(none)'}"
    if pod.deleted is not None:
        return _ending(ds, pod, what, now)
    if pod.node in down:
        return error(
            f"{what}: the node is not ready, so its state is unknown",
            f"check the kubelet there (kubectl describe node {pod.node})",
        )
    if pod.failed:
        return error(
            f"{what} has failed: {_cut(pod.failed)}",
            f"remove the cause; kubectl delete pod --namespace {ds.namespace} {pod.name} "
            "replaces it",
        )
    if not pod.is_placed:
        return error(
            f"{what} cannot be placed there: "
            f"{_cut(pod.unplaced) or 'no scheduler has given a reason'}",
            "make room on the node, or lower kubeletPlugin.containers.gpus.resources and "
            "mpsSupervisor.resources",
        )
    for container in pod.containers:
        if seen := _container(ds, pod, container, what, now):
            return seen
    return _unready(ds, pod, what, now)


def _ending(ds: Installed, pod: DaemonPod, what: str, now: datetime) -> Seen | None:
    if pod.deleted is None or now - pod.deleted < _ENDS_WITHIN:
        return info(f"{what} is being deleted")
    return error(
        f"{what} should have ended {_ago(pod.deleted, now)}",
        f"check the kubelet on {pod.node}; kubectl describe pod --namespace {ds.namespace} "
        f"{pod.name} has its events",
    )


def _container(
    ds: Installed, pod: DaemonPod, container: Container, what: str, now: datetime
) -> Seen | None:
    """Return what is wrong with a container, now or a short while ago."""
    where = f"--namespace {ds.namespace} {pod.name}"
    last = _how(container.ended, now)
    if container.waits == "CrashLoopBackOff":
        return error(
            f"{what}: {container.waits} after {count(container.restarts, 'restart')}{last}",
            _advice(
                container.ended,
                f"kubectl logs --previous {where} --container {container.name} says why",
            ),
        )
    if container.waits in _OF_IMAGES:
        return error(
            f"{what}: {container.waits}: {_cut(container.message)}",
            "set image.repository, image.tag and imagePullSecrets to what the node can pull, or "
            "load the image there",
        )
    if container.waits in _OF_CONFIG:
        return error(
            f"{what}: {container.waits}: {_cut(container.message)}",
            f"create what it names; kubectl describe pod {where} has its events",
        )
    ended = container.ended
    if ended is None or ended.at is None:
        return None
    age = now - ended.at
    is_many = container.restarts >= _MANY_RESTARTS and age < _RECENT
    if is_many or (ended.reason == _OUT_OF_MEMORY and age < _OF_A_DAY):
        times = "once" if container.restarts == 1 else f"{container.restarts} times"
        return warning(
            f"{what} has been restarted {times}{last}",
            _advice(
                ended, f"kubectl logs --previous {where} --container {container.name} says why"
            ),
        )
    return None


def _unready(ds: Installed, pod: DaemonPod, what: str, now: datetime) -> Seen | None:
    if pod.ready:
        return None
    since = pod.since or now
    if now - since < _STARTS_WITHIN:
        return info(f"{what} is not ready yet")
    waits = next((container.waits for container in pod.containers if container.waits), "")
    kind = "pod" if waits or not pod.containers else "logs"
    command = f"kubectl {'describe pod' if kind == 'pod' else 'logs'}"
    return error(
        f"{what} has not been ready since {_ago(since, now)}{f': {waits}' if waits else ''}",
        f"{command} --namespace {ds.namespace} {pod.name} says why",
    )


def _missing(ds: Installed, there: Collection[str], labelled: Mapping[str, str]) -> Iterator[Seen]:
    """Report nodes without a pod, by the DaemonSet's own count and by the labels of GPU nodes."""
    without = {node: taints for node, taints in labelled.items() if node not in there}
    names = [f"{node} (taints: {taints})" if taints else node for node, taints in without.items()]
    lacking = ds.wanted - ds.present
    if lacking > 0:
        where = f"; GPU nodes without one: {named(names)}" if names else ""
        yield error(
            f"DaemonSet {ds.name} has no pod on {count(lacking, 'node')} that should have one"
            f"{where}",
            f"kubectl describe daemonset --namespace {ds.namespace} {ds.short_name} shows what "
            "prevents them: a quota, an admission policy or a webhook",
        )
    elif names and ds.wanted:
        yield info(
            f"DaemonSet {ds.name} does not cover these nodes with a label of GPU nodes: "
            f"{named(names)}",
            "unless that is intended, make kubeletPlugin.tolerations, nodeSelector and affinity "
            "cover them",
        )


def _of_older_revisions(
    ds: Installed, present: Iterable[DaemonPod], now: datetime
) -> Iterator[Seen]:
    """Report pods that an update has left behind, or not reached yet."""
    if not ds.generation or ds.updated >= ds.wanted:
        return
    running = [pod for pod in present if pod.deleted is None]
    old = [pod for pod in running if pod.revision not in ("", ds.generation)]
    if not old:
        return
    text = f"DaemonSet {ds.name} has pods of an older revision on {named(p.node for p in old)}"
    if ds.waits_for_deletion:
        yield warning(
            f"{text}: its updateStrategy is OnDelete",
            f"kubectl delete pod --namespace {ds.namespace} NAME, node by node: "
            f"{named(p.name for p in old)}",
        )
        return
    newest = [pod.since for pod in running if pod.revision == ds.generation and pod.since]
    if newest and now - max(newest) < _ROLLS_WITHIN:
        yield info(f"{text}: an update is under way")
    else:
        yield warning(
            f"{text}, and the update is stuck",
            f"kubectl rollout status --namespace {ds.namespace} daemonset/{ds.short_name}: it "
            "waits for pods that are not ready",
        )


def _advice(ended: Ended | None, otherwise: str) -> str:
    if ended is not None and ended.reason == _OUT_OF_MEMORY:
        return (
            "raise its memory limit (kubeletPlugin.containers.gpus.resources, "
            "mpsSupervisor.resources), and report how much it needed"
        )
    return otherwise


def _how(ended: Ended | None, now: datetime) -> str:
    """Return in words how a container ended last, and when."""
    if ended is None:
        return ""
    words = [f"{ended.reason or 'ended'}, exit code {ended.code}"]
    if ended.at is not None:
        words.append(_ago(ended.at, now))
    said = f": {_cut(ended.message)}" if ended.message else ""
    return f"; last {', '.join(words)}{said}"


def _ago(then: datetime, now: datetime) -> str:
    seconds = max(0, int((now - then).total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} s ago"


def _cut(words: str) -> str:
    """Return the end of a long message, where a crash gives its reason."""
    return words if len(words) <= _LONGEST_MESSAGE else f"…{words[-_LONGEST_MESSAGE:]}"


def past_scheduler(
    pods: Iterable[Object], nodes: Mapping[str, Node], classes: Sequence[Object], *, unseen: int
) -> Iterator[Seen]:
    """Check the pods of nodes with GPUs; `unseen` is the number of such nodes left out.

    If a pod that was put on its node without the scheduler asks for GPUs by a resource name with a
    DeviceClass, the kubelet starts it without checking that they have been allocated (KEP-5004): it
    runs without GPUs, and without an error.
    """
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
        yield ok("no pod on a node with GPUs has bypassed the scheduler")
    if unseen:
        yield info(f"{count(unseen, 'more node')} not checked", "--node-name NODE checks one")
