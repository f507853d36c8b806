"""What a pod asks for: its claims, and those that the scheduler would make for resource names.

In: a pod, and how to find its claims, templates and DeviceClasses. Out: a `Demand`: what still has
to be allocated on a node, and what is in the way before any device is considered. A claim is named
by the pod, or was made for it from a template. For resource names (KEP-5004) the scheduler makes a
claim on nodes where no device plugin offers them: each container gets its own devices, and init
containers that end before others start may use the devices of later ones. Pure.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.admin.api.allocations import user_of
from dra_driver.admin.api.nodes import Node, selects, term_text
from dra_driver.admin.api.objects import full_name
from dra_driver.admin.explain.allocated import users_text
from dra_driver.admin.explain.pod_state import Finding, not_started
from dra_driver.admin.explain.requests import (
    Claim,
    DeviceRequest,
    Request,
    claim_of,
    read_claim,
    selectors_of,
)
from dra_driver.admin.of_others import KAI_PARTS
from dra_driver.admin.wrong_names import meant
from dra_driver.claims.model.claim import is_pod_group
from dra_driver.host import words
from dra_driver.kube.fields import Object, at, mapping, objects, text
from resource_nvidia_com.quantity import Quantity

NOT_MADE = "its ResourceClaim does not exist yet"
"""The text for a claim that a controller will make from its template."""

BYPASSED_ADVICE = (
    "delete the pod, and choose its node by a nodeSelector or affinity on kubernetes.io/hostname "
    "in place of spec.nodeName, so that the scheduler allocates its devices"
)

_FRACTION_ADVICE = (
    "ask for nvidia.com/gpu in its limits, or by a claim for part of a GPU "
    "(docs/device-attributes.md)"
)

_IMPLICIT = "deviceclass.resource.kubernetes.io/"
_MOST_USERS = 256
_OF_KUBERNETES = "kubernetes.io/"
_NVIDIA = "nvidia.com/"

Find = Callable[[str], Object | None]
"""Finds an object of the pod's namespace by its name; None if there is none."""


class AllocatedClaim(Struct, frozen=True, kw_only=True):
    """A claim that already has its devices, each named by device and pool.

    `selector` selects the nodes on which the devices can be used; None for all.
    """

    name: str
    devices: tuple[str, ...]
    users: tuple[str, ...]
    selector: Object | None


class Demand(Struct, frozen=True, kw_only=True):
    """The demand of a pod or claim.

    Attributes:
        name: `pod team/train`.
        pod: the pod; empty for a claim alone.
        blocked: what has to change before devices are considered.
        resources: the DeviceClass behind each resource name in the pod's containers; empty if there
            is none.
        on_node: the node that the pod was bound to.
        problems: what is wrong with it, whatever devices are free.
        is_without: whether it will never get devices that it asks for.
    """

    name: str
    pod: Object = {}
    claims: tuple[Claim, ...] = ()
    allocated: tuple[AllocatedClaim, ...] = ()
    blocked: tuple[str, ...] = ()
    resources: Mapping[str, str] = {}
    on_node: str = ""
    problems: tuple[Finding, ...] = ()
    is_without: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to allocate."""
        return not self.claims and not self.resources

    @property
    def lacks_claims(self) -> bool:
        """Whether a claim still has to be made for it."""
        return bool(self.resources) or any(claim.why == NOT_MADE for claim in self.claims)

    def obstacles_on(self, node: Node) -> Iterator[str]:
        """Yield why its claims and resource names keep it off a node."""
        for claim in self.allocated:
            if claim.selector is not None and not selects(claim.selector, node):
                yield f"claim {claim.name} has devices of {term_text(claim.selector)}"
        for name, device_class in self.resources.items():
            if not device_class and not node.plugin_resources.get(name):
                yield f"nothing offers {name}: {_why_nothing(name)}"

    def unknown_on(self, node: Node) -> str:
        """Return which of its resources are not considered here on a node."""
        names = [name for name in self.resources if node.plugin_resources.get(name)]
        return (
            f"a device plugin offers {', '.join(names)} there, which is not considered here"
            if names
            else ""
        )

    def claims_on(self, node: Node) -> tuple[Claim, ...]:
        """Return what would have to be allocated on a node."""
        names = {
            name: device_class
            for name, device_class in self.resources.items()
            if device_class and not node.plugin_resources.get(name)
        }
        requests = tuple(_requests(self.pod, names)) if names else ()
        if not requests:
            return self.claims
        listed = ", ".join(f"DeviceClass {names[name]} for {name}" for name in sorted(names))
        implied = Claim(name="by resource name", requests=requests, why=listed)
        return (*self.claims, implied)


def _why_nothing(name: str) -> str:
    if wrong := meant(name):
        return wrong
    nothing = "no DeviceClass, and no device plugin of the node"
    if not name.startswith(_NVIDIA):
        return nothing
    return f"{nothing} (`dra-driver classes {name}` prints the DeviceClass)"


def of_claim(thing: Object) -> Demand:
    """Return what a claim by itself asks for."""
    name = f"claim {full_name(thing)}"
    blocked = _deleted(thing)
    if mapping(thing, "status", "allocation"):
        return Demand(name=name, allocated=(_allocated(thing),), blocked=blocked)
    return Demand(name=name, claims=(read_claim(thing),), blocked=blocked)


def of_pod(
    pod: Object, claim_named: Find, template_named: Find, classes: Sequence[Object]
) -> Demand:
    """Return what a pod asks for. Raises ValueError if a quantity cannot be read."""
    claims: list[Claim] = []
    allocated: list[AllocatedClaim] = []
    blocked: list[str] = list(_gates(pod))
    for entry in objects(pod, "spec", "resourceClaims"):
        name = _name_of(pod, entry)
        if name == "":
            continue  # the template's controller found that the pod needs none
        thing = None if name is None else claim_named(name)
        if thing is not None:
            if mapping(thing, "status", "allocation"):
                allocated.append(_allocated(thing))
            else:
                claims.append(read_claim(thing))
            blocked += [*_deleted(thing), *_full(thing, pod)]
            continue
        template = text(entry, "resourceClaimTemplateName")
        made = template_named(template) if template else None
        if made is None:
            what = f"ResourceClaimTemplate {template}" if template else f"ResourceClaim {name}"
            there = text(pod, "metadata", "namespace")
            blocked.append(
                f"namespace {there} has no {what}: create it there, or correct the pod's spec"
            )
            continue
        called = f"{text(entry, 'name')} of template {template}"
        spec = mapping(made, "spec", "spec")
        claims.append(claim_of(called, spec, why=NOT_MADE))
    own = text(pod, "status", "extendedResourceClaimStatus", "resourceClaimName")
    if (thing := claim_named(own)) is not None:
        allocated.append(_allocated(thing))
    resources = _resources(pod, classes)
    return Demand(
        name=f"pod {full_name(pod)}",
        pod=pod,
        claims=tuple(claims),
        allocated=tuple(allocated),
        blocked=tuple(blocked),
        resources=resources,
        on_node=text(pod, "spec", "nodeName"),
    )


def with_problems(demand: Demand, node: Node | None) -> Demand:
    """Return a demand with its problems on the node that the pod was bound to, if it was."""
    without = []
    if why := bypassing(demand, node):
        without.append(Finding(title=why, advice=(BYPASSED_ADVICE,)))
    marks = [name for name in mapping(demand.pod, "metadata", "annotations") if name in KAI_PARTS]
    if marks and demand.is_empty and not demand.allocated:
        title = f"only KAI-Scheduler reads the pod's annotation {', '.join(marks)}: it gets no GPU"
        without.append(Finding(title=title, advice=(_FRACTION_ADVICE,)))
    problems = (*without, *(not_started(demand.pod) if demand.on_node else ()))
    return replace(demand, problems=problems, is_without=bool(without))


def bypassing(demand: Demand, node: Node | None) -> str:
    """Return what is not allocated to a pod that was bound to a node; empty if everything is.

    The scheduler allocates before it binds. So what is not allocated by then never will be: the pod
    named its node itself, or something else bound it. The kubelet waits for claims, but ignores
    resource names with a DeviceClass (KEP-5004).
    """
    is_over = text(demand.pod, "status", "phase") in ("Succeeded", "Failed")
    if not demand.on_node or is_over or at(demand.pod, "metadata", "deletionTimestamp"):
        return ""
    plugins = node.plugin_resources if node else {}
    named = text(demand.pod, "status", "extendedResourceClaimStatus", "resourceClaimName")
    names = [
        name
        for name, behind in demand.resources.items()
        if behind and not named and not plugins.get(name)
    ]
    missing = [f"claim {claim.name}" for claim in demand.claims] + names
    if not missing:
        return ""
    runs = text(demand.pod, "status", "phase") == "Running"
    state = "runs without" if runs and not demand.claims else "never gets"
    return (
        f"the pod was bound to node {demand.on_node} without the scheduler, by spec.nodeName or "
        f"another program, and {state} what was not allocated: {', '.join(missing)}"
    )


def _gates(pod: Object) -> Iterator[str]:
    gates = [text(gate, "name") for gate in objects(pod, "spec", "schedulingGates")]
    if gates:
        yield f"the pod has the scheduling gates {', '.join(gates)}, which their owner removes"
    if at(pod, "metadata", "deletionTimestamp"):
        yield "the pod is being deleted"


def _deleted(thing: Object) -> tuple[str, ...]:
    if not at(thing, "metadata", "deletionTimestamp"):
        return ()
    users = tuple(user_of(consumer) for consumer in objects(thing, "status", "reservedFor"))
    until = f"{users_text(users)} has ended" if users else "it is gone"
    again = "" if at(thing, "metadata", "ownerReferences") else ", and create the claim again"
    return (f"claim {full_name(thing)} is being deleted: wait until {until}{again}",)


def _full(thing: Object, pod: Object) -> Iterator[str]:
    users = objects(thing, "status", "reservedFor")
    mine = text(pod, "metadata", "uid")
    group = text(pod, "spec", "schedulingGroup", "podGroupName")
    if len(users) < _MOST_USERS or mine in [text(user, "uid") for user in users]:
        return
    groups = [text(user, "name") for user in users if is_pod_group(user)]
    if group and group in groups:
        return  # all pods of a group together count as one user
    what = words.count(len(users) - len(groups), "pod")
    what += f" and {words.count(len(groups), 'PodGroup')}" if groups else ""
    yield f"claim {full_name(thing)} is in use by {what}, which is the most that can use a claim"


def _name_of(pod: Object, entry: Object) -> str | None:
    """Return the name of a pod's claim; None if not made yet, empty if none is needed."""
    if name := text(entry, "resourceClaimName"):
        return name
    for status in objects(pod, "status", "resourceClaimStatuses"):
        if text(status, "name") == text(entry, "name"):
            return text(status, "resourceClaimName")
    return None


def _allocated(thing: Object) -> AllocatedClaim:
    allocation = mapping(thing, "status", "allocation")
    selector = mapping(allocation, "nodeSelector")
    return AllocatedClaim(
        name=full_name(thing),
        devices=tuple(
            f"{text(result, 'device')} of pool {text(result, 'pool')}"
            for result in objects(allocation, "devices", "results")
        ),
        users=tuple(user_of(consumer) for consumer in objects(thing, "status", "reservedFor")),
        selector=selector or None,
    )


def selectors_by_class(classes: Sequence[Object]) -> dict[str, tuple[str, ...]]:
    """Return the selectors of each DeviceClass."""
    return {text(each, "metadata", "name"): selectors_of(mapping(each, "spec")) for each in classes}


def _resources(pod: Object, classes: Sequence[Object]) -> dict[str, str]:
    """Return the DeviceClass behind each resource name that containers ask for."""
    behind: dict[str, tuple[str, str]] = {}
    for device_class in classes:
        metadata = mapping(device_class, "metadata")
        name, made = text(metadata, "name"), text(metadata, "creationTimestamp")
        resource = text(device_class, "spec", "extendedResourceName")
        # The newest class counts; of two with the same creation time, the first by name.
        known = behind.get(resource)
        if resource and (known is None or (made, known[1]) > (known[0], name)):
            behind[resource] = (made, name)
        behind[_IMPLICIT + name] = (made, name)
    wanted = dict.fromkeys(
        name
        for container in _containers(pod)
        for name, count in _asked(container).items()
        if "/" in name and count
    )
    return {
        name: behind[name][1] if name in behind and _is_extended(name) else "" for name in wanted
    }


def _is_extended(name: str) -> bool:
    """Return whether a DeviceClass may serve a name with a slash (KEP-5004)."""
    return name.startswith(_IMPLICIT) or _OF_KUBERNETES not in name


def _containers(pod: Object) -> tuple[Object, ...]:
    spec = mapping(pod, "spec")
    return (*objects(spec, "initContainers"), *objects(spec, "containers"))


def _asked(container: Object) -> dict[str, int]:
    asked = mapping(container, "resources", "requests") or mapping(container, "resources", "limits")
    return {name: Quantity.parse(str(amount)).whole for name, amount in asked.items()}


def _requests(pod: Object, names: Mapping[str, str]) -> Iterator[Request]:
    """Yield the requests of the claim that the scheduler would make."""
    requests: list[DeviceRequest] = []
    for name, device_class in sorted(names.items()):
        requests += _device_requests(pod, name, device_class)
    for request in sorted(requests, key=lambda each: each.parent):
        yield Request(name=request.parent, alternatives=(request,))


def _device_requests(pod: Object, resource: str, device_class: str) -> Iterator[DeviceRequest]:
    containers = _containers(pod)
    short = {
        place
        for place, init in enumerate(objects(pod, "spec", "initContainers"))
        if text(init, "restartPolicy") != "Always"
    }
    counts = [_asked(each).get(resource, 0) for each in containers]
    lasting = [0 if place in short else count for place, count in enumerate(counts)]
    most, widest = 0, -1
    for place in sorted(short):
        more = counts[place] - sum(lasting[place:])
        if more > most:
            most, widest = more, place
    for place, container in enumerate(containers):
        count = most if place == widest else lasting[place]
        if count > 0:
            number = sorted(_asked(container)).index(resource)
            yield DeviceRequest(
                parent=f"container-{place}-request-{number}",
                called=f"{resource} of container {text(container, 'name')}",
                device_class=device_class,
                count=count,
            )
