"""The pods of our DaemonSets, as far as checks need them. Pure."""

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct

from dra_driver.kube.fields import Object, mapping, number, objects, text, texts_by_name

_REVISION_LABEL = "pod-template-generation"


class Ended(Struct, frozen=True, kw_only=True):
    """How a container ended: a reason such as OOMKilled, exit code, last message, time."""

    reason: str
    code: int
    message: str
    at: datetime | None


class Container(Struct, frozen=True, kw_only=True):
    """A container: why it waits and the kubelet's message, empty while it does not wait."""

    name: str
    waits: str
    message: str
    restarts: int
    ended: Ended | None


class DaemonPod(Struct, frozen=True, kw_only=True):
    """A pod of a DaemonSet.

    Attributes:
        node: where it is, or will be.
        revision: the number of its DaemonSet's revision; empty if unknown.
        is_placed: whether it was bound to the node.
        unplaced: why it was not, in the scheduler's words.
        since: when it became ready or unready; its creation, if nothing has handled it yet.
        deleted: when its grace period ends or ended; None unless it is being deleted.
        failed: why it has failed permanently, such as Evicted; empty if it has not.
    """

    name: str
    node: str
    revision: str
    is_placed: bool
    unplaced: str
    ready: bool
    since: datetime | None
    deleted: datetime | None
    failed: str
    containers: tuple[Container, ...]


def pods_of(owner: str, pods: Iterable[Object]) -> list[DaemonPod]:
    """Return the pods that the DaemonSet of this name owns, in the order of node and name."""
    own = [_pod(pod) for pod in pods if _owner(pod) == owner]
    return sorted(own, key=lambda pod: (pod.node, pod.name))


def _owner(pod: Object) -> str | None:
    owners = objects(pod, "metadata", "ownerReferences")
    return next(
        (text(owner, "name") for owner in owners if text(owner, "kind") == "DaemonSet"), None
    )


def _pod(pod: Object) -> DaemonPod:
    meta, status = mapping(pod, "metadata"), mapping(pod, "status")
    conditions = {text(condition, "type"): condition for condition in objects(status, "conditions")}
    ready, placed = conditions.get("Ready", {}), conditions.get("PodScheduled", {})
    has_failed = text(status, "phase") == "Failed"
    return DaemonPod(
        name=text(meta, "name"),
        node=text(pod, "spec", "nodeName") or _wanted_node(pod),
        revision=texts_by_name(meta, "labels").get(_REVISION_LABEL, ""),
        is_placed=bool(text(pod, "spec", "nodeName")),
        unplaced=text(placed, "message") if text(placed, "status") == "False" else "",
        ready=text(ready, "status") == "True",
        since=_time(ready, "lastTransitionTime") or _time(meta, "creationTimestamp"),
        deleted=_time(meta, "deletionTimestamp"),
        failed=_failure(status) if has_failed else "",
        containers=tuple(
            _container(each)
            for kind in ("initContainerStatuses", "containerStatuses")
            for each in objects(status, kind)
        ),
    )


def _failure(status: Object) -> str:
    words = (text(status, "reason"), text(status, "message"))
    return ": ".join(filter(None, words)) or "it has failed"


def _wanted_node(pod: Object) -> str:
    """Return the node that a DaemonSet's controller made a pod for, before it is bound there."""
    affinity = mapping(pod, "spec", "affinity", "nodeAffinity")
    required = mapping(affinity, "requiredDuringSchedulingIgnoredDuringExecution")
    for term in objects(required, "nodeSelectorTerms"):
        for field in objects(term, "matchFields"):
            values = field.get("values")
            if text(field, "key") == "metadata.name" and isinstance(values, list) and values:
                return str(values[0])
    return ""


def _container(status: Object) -> Container:
    state, last = mapping(status, "state"), mapping(status, "lastState")
    waiting = mapping(state, "waiting")
    ended = mapping(state, "terminated") or mapping(last, "terminated")
    return Container(
        name=text(status, "name"),
        waits=text(waiting, "reason"),
        message=text(waiting, "message"),
        restarts=number(status, "restartCount"),
        ended=_ended(ended) if ended else None,
    )


def _ended(state: Object) -> Ended:
    return Ended(
        reason=text(state, "reason"),
        code=number(state, "exitCode"),
        message=" ".join(text(state, "message").split()),
        at=_time(state, "finishedAt"),
    )


def _time(holder: Object, key: str) -> datetime | None:
    """Return a time of the API (RFC 3339, in UTC); None if there is none."""
    try:
        moment = datetime.fromisoformat(text(holder, key))
    except ValueError:
        return None
    return moment if moment.tzinfo else None
