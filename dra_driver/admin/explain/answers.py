"""Whether a pod's claims fit on each node, and why not. Pure."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.admin.api.allocations import Allocation
from dra_driver.admin.api.nodes import Node
from dra_driver.admin.api.slices import Device, DeviceId
from dra_driver.admin.cel.selector import shown
from dra_driver.admin.cel.values import NotUnderstoodError
from dra_driver.admin.explain.allocated import AllocatedState, named
from dra_driver.admin.explain.pools import Pools
from dra_driver.admin.explain.reasons import UNSELECTED, Reason, first_reason
from dra_driver.admin.explain.requests import ALL, Claim, Constraint, DeviceRequest
from dra_driver.admin.explain.search import (
    Classes,
    GivenUpError,
    Pick,
    Scene,
    SelectorCache,
    UndecidedError,
    picks,
)
from dra_driver.devices.names import MPS_SHARE, SINGLE_SHARE, in_order, undivided_name
from dra_driver.host.words import count

_VALUES = 4
"""How many values of an attribute are shown, the most frequent ones."""

_TOO_LONG = "there are too many ways to allocate its devices to try them all"


class DeviceAnswer(Struct, frozen=True, kw_only=True):
    """A device, and why a request does not get it; None if nothing prevents it."""

    device: Device
    reason: Reason | None


class RequestAnswer(Struct, frozen=True, kw_only=True):
    """The devices of a node, judged for a request."""

    claim: str
    request: DeviceRequest
    devices: tuple[DeviceAnswer, ...]

    @property
    def selected(self) -> tuple[DeviceAnswer, ...]:
        """The matching devices, available or not."""
        return tuple(
            device
            for device in self.devices
            if device.reason is None or device.reason.kind not in UNSELECTED
        )

    @property
    def usable(self) -> tuple[DeviceAnswer, ...]:
        """The devices that the request could get."""
        return tuple(device for device in self.devices if device.reason is None)

    @property
    def needed(self) -> int:
        """How many devices the request takes."""
        return max(1, len(self.selected)) if self.request.mode == ALL else self.request.count

    @property
    def suffices(self) -> bool:
        """Whether there are enough for this request alone."""
        # One claim can have several parts of a device.
        shared = any(usable.device.shared for usable in self.usable)
        return bool(self.usable) and (len(self.usable) >= self.needed or shared)


class Conflict(Struct, frozen=True):
    """Why requests do not fit together."""

    text: str
    holders: tuple[Allocation, ...] = ()


class NodeAnswer(Struct, frozen=True, kw_only=True):
    """The result for all claims on a node.

    Attributes:
        obstacles: why the pod cannot run there, whatever devices are free.
        picks: the devices that it would get; None if it does not fit.
        given_up: why the scheduler gives up on the pod, on all nodes.
        unknown: why it is not known whether it fits.
        together: why it does not fit although each request alone has enough, if that is so.
        problems: the pools from which nothing is allocated, and why.
    """

    node: Node
    obstacles: tuple[str, ...] = ()
    picks: tuple[Pick, ...] | None = None
    given_up: GivenUpError | None = None
    unknown: str = ""
    requests: tuple[RequestAnswer, ...] = ()
    together: Conflict | None = None
    problems: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the pod fits there."""
        return not self.obstacles and self.picks is not None


class Cluster(Struct, frozen=True, kw_only=True):
    """The cluster's state: nodes, pools, the selectors of each DeviceClass, what claims have."""

    nodes: Sequence[Node]
    pools: Pools
    classes: Classes
    allocated: AllocatedState


def answer_on(
    cluster: Cluster,
    node: Node,
    claims: Sequence[Claim],
    obstacles: Sequence[str],
    selectors: SelectorCache,
) -> NodeAnswer:
    """Return the result for claims on a node."""
    scene = Scene(
        node=node,
        pools=cluster.pools.on(node),
        classes=cluster.classes,
        allocated=cluster.allocated,
        selectors=selectors,
    )
    answer = NodeAnswer(
        node=node,
        obstacles=tuple(obstacles),
        problems=tuple(
            f"pool {pool.name} of {pool.driver} is {pool.fault}: {pool.problem}"
            for pool in scene.pools
            if pool.fault is not None
        ),
    )
    if obstacles:
        return answer
    try:
        picked = picks(scene, claims)
    except GivenUpError as error:
        return replace(answer, given_up=error, requests=tuple(_request_answers(scene, claims)))
    except UndecidedError:
        return replace(answer, unknown=_TOO_LONG, requests=tuple(_request_answers(scene, claims)))
    except NotUnderstoodError as error:
        unknown = f"a selector has {error}, which is not understood here"
        return replace(answer, unknown=unknown, requests=tuple(_request_answers(scene, claims)))
    refusal = None if picked is None else _refusal(picked)
    if picked is not None and refusal is None:
        return replace(answer, picks=tuple(picked))
    requests = tuple(_request_answers(scene, claims))
    together = Conflict(refusal) if refusal else None
    if together is None and _each_suffices(claims, requests):
        together = _together(scene, claims, requests)
    return replace(answer, requests=requests, together=together)


def _refusal(picked: Sequence[Pick]) -> str | None:
    """Return why these shares may not be allocated; None if they may.

    It is empty if each share already has this reason by itself (reasons.py).
    """
    requests: dict[tuple[str, str], list[DeviceId]] = {}
    for pick in picked:
        requests.setdefault((pick.claim, pick.request), []).append(pick.device)
    for (_, request), devices in requests.items():
        if sum(device.share == SINGLE_SHARE for device in devices) > 1:
            return ""
        by_mps = [device.device for device in devices if device.share == MPS_SHARE]
        divided = sorted({undivided_name(name) for name in by_mps}, key=in_order)
        if len(divided) > 1:
            return (
                f"request {request} would get shares of {', '.join(divided)}, and under MPS they "
                "have to be of one device: use a claim with `constraints: [{matchAttribute: "
                "gpu.nvidia.com/uuid}]`, or a node with one divided device"
            )
    return None


def _request_answers(scene: Scene, claims: Sequence[Claim]) -> Iterator[RequestAnswer]:
    for claim in claims:
        for request in claim.alternatives:
            yield RequestAnswer(
                claim=claim.name, request=request, devices=tuple(_devices(scene, request))
            )


def _devices(scene: Scene, request: DeviceRequest) -> Iterator[DeviceAnswer]:
    for pool in scene.pools:
        for device in pool.devices:
            reason = first_reason(scene, pool, request, device)
            yield DeviceAnswer(device=device, reason=reason)


def _each_suffices(claims: Sequence[Claim], requests: Sequence[RequestAnswer]) -> bool:
    return all(
        any(
            request.suffices
            for request in requests
            if (request.claim, request.request.parent) == (claim.name, entry.name)
        )
        for claim in claims
        for entry in claim.requests
    )


def _together(scene: Scene, claims: Sequence[Claim], requests: Sequence[RequestAnswer]) -> Conflict:
    if any(claim.constraints for claim in claims):
        free = [replace(claim, constraints=()) for claim in claims]
        if _fits(scene, free):
            conflicts = [
                _of_constraint(claim, constraint, requests)
                for claim in claims
                for constraint in claim.constraints
                if not _fits(
                    scene, [*_but(claims, claim), replace(claim, constraints=(constraint,))]
                )
            ]
            if not conflicts:
                return Conflict("no devices meet all constraints of the claims together")
            holders = tuple(holder for conflict in conflicts for holder in conflict.holders)
            return Conflict("; ".join(conflict.text for conflict in conflicts), holders)
    if len(requests) == 1:
        return Conflict(
            f"request {requests[0].request.name} has enough devices, but not all at once: they "
            "use the same counters or capacity"
        )
    return Conflict(
        "each request alone has enough devices, but not all together: they need the same devices, "
        "counters or capacity"
    )


def _but(claims: Sequence[Claim], claim: Claim) -> list[Claim]:
    return [replace(each, constraints=()) for each in claims if each is not claim]


def _fits(scene: Scene, claims: Sequence[Claim]) -> bool:
    try:
        return picks(scene, claims) is not None
    except (GivenUpError, UndecidedError, NotUnderstoodError):
        return False


def _of_constraint(
    claim: Claim, constraint: Constraint, requests: Sequence[RequestAnswer]
) -> Conflict:
    concerned = [
        request
        for request in requests
        if request.claim == claim.name and constraint.concerns(request.request)
    ]
    kind = "distinctAttribute" if constraint.distinct else "matchAttribute"
    subject = f"claim {claim.name} has the constraint {kind} {constraint.attribute}: "
    free = _by_value(constraint, concerned, lambda each: each.reason is None)
    if not constraint.distinct:
        needed = sum(
            min(answer.needed for answer in concerned if answer.request.parent == name)
            for name in {answer.request.parent for answer in concerned}
        )
        if enough := _with(free, needed):
            return Conflict(
                f"{subject}enough devices have {' or '.join(enough[:_VALUES])}, but they cannot "
                "all be allocated at once: they use the same counters or capacity, or other "
                "requests need them"
            )
        there = _by_value(
            constraint, concerned, lambda each: each.reason is None or bool(each.reason.holders)
        )
        if could := _with(there, needed):
            holders = tuple(
                holder
                for value in could
                for answer in there[value].values()
                if answer.reason is not None
                for holder in answer.reason.holders
            )
            of_values = ", ".join(
                f"{len(free.get(value, {}))} of {len(there[value])} with {value}"
                for value in could[:_VALUES]
            )
            return Conflict(
                f"{subject}its devices must have the same value, and too few with any one value "
                f"are free, {of_values}: the others are in use by {named(holders)}",
                holders,
            )
    what = "different values" if constraint.distinct else "the same value"
    counts = {value: len(devices) for value, devices in free.items()}
    return Conflict(
        f"{subject}its devices must have {what}, and those that are free have "
        f"{counted_text([value for value, number in counts.items() for _ in range(number)])}"
    )


def _by_value(
    constraint: Constraint,
    concerned: Sequence[RequestAnswer],
    counts: Callable[[DeviceAnswer], bool],
) -> dict[str | None, dict[DeviceId, DeviceAnswer]]:
    """Return the devices that count, by value in words; None is for those without one."""
    by_text: dict[str | None, dict[DeviceId, DeviceAnswer]] = {}
    for request in concerned:
        for answer in filter(counts, request.devices):
            value = answer.device.attribute(constraint.attribute)
            text = None if value is None else shown(value)
            by_text.setdefault(text, {})[answer.device.id] = answer
    return by_text


def _with(by_value: Mapping[str | None, Mapping[DeviceId, DeviceAnswer]], needed: int) -> list[str]:
    """Return the values that enough devices have; one claim can have several parts of a device."""
    return [
        value
        for value, devices in by_value.items()
        if value is not None
        and (len(devices) >= needed or any(device.device.shared for device in devices.values()))
    ]


def counted_text(values: Sequence[str | None]) -> str:
    """Return values and how many devices have each: `"a" (2 devices), none (1 device)`."""
    counts = Counter(values)
    ranked = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0] or ""))
    parts = [
        f"{'none' if text is None else text} ({count(number, 'device')})" for text, number in ranked
    ]
    if len(parts) > _VALUES:
        parts[_VALUES:] = [f"{len(parts) - _VALUES} other values"]
    return ", ".join(parts)
