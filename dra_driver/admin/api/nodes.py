"""Nodes, and whether devices or a pod can be on one.

In: Nodes, node selectors and pods as dicts. Out: values, and the reasons why the scheduler does not
consider a node for a pod. The rules are those of NodeSelector and of the scheduler's plugins
NodeName, NodeUnschedulable, TaintToleration and NodeAffinity. Other needs of a pod (CPU and memory,
ports, volumes, other pods nearby) are ignored. Pure.
"""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from dra_driver.admin.api.objects import texts
from dra_driver.kube.fields import Object, at, mapping, objects, text, texts_by_name

_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_BLOCKING = frozenset({"NoSchedule", "NoExecute"})


class Taint(Struct, frozen=True, kw_only=True):
    """A taint of a node or a device; `rule` is the DeviceTaintRule that sets it, if one does."""

    key: str
    value: str
    effect: str
    rule: str = ""

    @classmethod
    def of(cls, entry: Object) -> "Taint":
        """Read one."""
        return cls(key=text(entry, "key"), value=text(entry, "value"), effect=text(entry, "effect"))

    def __str__(self) -> str:
        """Return it as kubectl writes it."""
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"

    @property
    def blocks(self) -> bool:
        """Whether it keeps away everything that does not tolerate it."""
        return self.effect in _BLOCKING


class Toleration(Struct, frozen=True, kw_only=True):
    """A toleration of a pod or a request."""

    key: str
    operator: str
    value: str
    effect: str

    @classmethod
    def of(cls, entry: Object) -> "Toleration":
        """Read one."""
        return cls(
            key=text(entry, "key"),
            operator=text(entry, "operator") or "Equal",
            value=text(entry, "value"),
            effect=text(entry, "effect"),
        )

    def tolerates(self, taint: Taint) -> bool:
        """Tell whether it tolerates this taint."""
        return (
            self.effect in ("", taint.effect)
            and self.key in ("", taint.key)
            and (
                self.operator == "Exists"
                or (self.operator == "Equal" and self.value == taint.value)
                or self._compares(taint)
            )
        )

    def _compares(self, taint: Taint) -> bool:
        try:
            theirs, ours = int(taint.value), int(self.value)
        except ValueError:
            return False
        return (self.operator == "Gt" and theirs > ours) or (
            self.operator == "Lt" and theirs < ours
        )


class Node(Struct, frozen=True, kw_only=True):
    """A node, as far as it matters for pods and devices.

    `plugin_resources` maps the resource names of device plugins, which are all that are not
    Kubernetes' own, to the node's amounts.
    """

    name: str
    labels: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    plugin_resources: Mapping[str, int] = {}

    @classmethod
    def of(cls, thing: Object) -> "Node":
        """Read a Node."""
        conditions = objects(thing, "status", "conditions")
        ready = [
            text(condition, "status")
            for condition in conditions
            if text(condition, "type") == "Ready"
        ]
        return cls(
            name=text(thing, "metadata", "name"),
            labels=texts_by_name(thing, "metadata", "labels"),
            taints=tuple(map(Taint.of, objects(thing, "spec", "taints"))),
            unschedulable=at(thing, "spec", "unschedulable") is True,
            ready=ready in ([], ["True"]),
            plugin_resources={
                name: int(str(amount))
                for name, amount in mapping(thing, "status", "allocatable").items()
                if "/" in name and str(amount).isdecimal()
            },
        )


def selects(selector: Object, node: Node) -> bool:
    """Tell whether a NodeSelector selects a node: one matching term is enough."""
    return any(_term_selects(term, node) for term in objects(selector, "nodeSelectorTerms"))


def _term_selects(term: Object, node: Node) -> bool:
    expressions = objects(term, "matchExpressions")
    of_fields = objects(term, "matchFields")
    if not expressions and not of_fields:
        return False
    return all(_requirement_holds(expression, node.labels) for expression in expressions) and all(
        _requirement_holds(requirement, {"metadata.name": node.name}) for requirement in of_fields
    )


def _requirement_holds(requirement: Object, labels: Mapping[str, str]) -> bool:
    value = labels.get(text(requirement, "key"))
    values = texts(requirement, "values")
    match text(requirement, "operator"):
        case "In" | "NotIn" as operator:
            return (value in values) == (operator == "In")
        case "Exists" | "DoesNotExist" as operator:
            return (value is not None) == (operator == "Exists")
        case ("Gt" | "Lt") as operator:
            try:
                difference = int(value or "") - int(values[0])
            except (ValueError, IndexError):
                return False
            return difference > 0 if operator == "Gt" else difference < 0
        case _:
            return False


def term_text(selector: Object) -> str:
    """Return a NodeSelector in words."""
    terms = []
    for term in objects(selector, "nodeSelectorTerms"):
        parts = [
            *objects(term, "matchExpressions"),
            *objects(term, "matchFields"),
        ]
        terms.append(" and ".join(map(_requirement_text, parts)) or "nothing")
    return " or ".join(terms)


def _requirement_text(requirement: Object) -> str:
    values = ", ".join(texts(requirement, "values"))
    listed = f" ({values})" if values else ""
    return f"{text(requirement, 'key')} {text(requirement, 'operator')}{listed}"


def obstacles(pod: Object, node: Node) -> tuple[str, ...]:
    """Return why a pod cannot be on a node, with any devices; empty if it can."""
    return tuple(_obstacles(mapping(pod, "spec"), node))


def _obstacles(spec: Object, node: Node) -> Iterator[str]:
    wanted = text(spec, "nodeName")
    if wanted and wanted != node.name:
        yield f"the pod is on node {wanted}"
    tolerations = [Toleration.of(toleration) for toleration in objects(spec, "tolerations")]
    cordon = Taint(key=_UNSCHEDULABLE, value="", effect="NoSchedule")
    if node.unschedulable and not _tolerated(cordon, tolerations):
        yield "the node is cordoned"
    for taint in node.taints:
        if taint.key == _UNSCHEDULABLE and node.unschedulable:
            continue  # reported above
        if taint.blocks and not _tolerated(taint, tolerations):
            yield f"the pod does not tolerate the node's taint {taint}"
    labels = mapping(spec, "nodeSelector")
    missing = [f"{key}={value}" for key, value in labels.items() if node.labels.get(key) != value]
    if missing:
        yield f"the pod's nodeSelector asks for {', '.join(missing)}"
    affinity = mapping(
        spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if affinity and not selects(affinity, node):
        yield f"the pod's node affinity asks for {term_text(affinity)}"


def _tolerated(taint: Taint, tolerations: list[Toleration]) -> bool:
    return any(toleration.tolerates(taint) for toleration in tolerations)
