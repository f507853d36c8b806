"""What a ResourceClaim asks for.

A request is exact, or has alternatives of which the first that fits is taken; by default, each asks
for one device. Amounts are in billionths of their units. Pure.
"""

from collections.abc import Mapping

from msgspec import Struct

from dra_driver.admin.api.nodes import Toleration
from dra_driver.admin.api.objects import full_name, nanos, texts
from dra_driver.kube.fields import Object, mapping, number, objects, text

EXACT, ALL = "ExactCount", "All"
MOST_DEVICES = 32
"""The most devices that a claim can have."""


class DeviceRequest(Struct, frozen=True, kw_only=True):
    """What devices a request asks for, or one of its alternatives.

    Attributes:
        parent: the name of the claim's request.
        alternative: the name of the alternative; empty if there are none.
        called: a description for people, if the name is a generated one.
        selectors: expressions that a device must fulfil besides those of the class.
        mode: ExactCount or All.
        admin: whether it asks for admin access, to devices that others have.
    """

    parent: str
    alternative: str = ""
    called: str = ""
    device_class: str = ""
    selectors: tuple[str, ...] = ()
    mode: str = EXACT
    count: int = 1
    admin: bool = False
    tolerations: tuple[Toleration, ...] = ()
    capacities: Mapping[str, int] = {}

    @property
    def name(self) -> str:
        """Its name in allocations: request, or request/alternative."""
        return f"{self.parent}/{self.alternative}" if self.alternative else self.parent

    @property
    def label(self) -> str:
        """Its name for people."""
        return self.called or self.name

    @property
    def takes_several(self) -> bool:
        """Whether it may take several devices for itself."""
        return (self.count > 1 or self.mode == ALL) and not self.admin


class Request(Struct, frozen=True, kw_only=True):
    """A request of a claim: for exactly one thing, or alternatives in their order."""

    name: str
    alternatives: tuple[DeviceRequest, ...]
    has_alternatives: bool = False


class Constraint(Struct, frozen=True, kw_only=True):
    """An attribute that devices of requests must have in common, or distinct; none named: all."""

    attribute: str
    distinct: bool
    requests: tuple[str, ...] = ()

    def concerns(self, request: DeviceRequest) -> bool:
        """Return whether it applies to the devices of a request."""
        return not self.requests or request.parent in self.requests or request.name in self.requests


class Claim(Struct, frozen=True, kw_only=True):
    """A claim that has to be allocated.

    Attributes:
        name: namespace and name, or a description if there is none yet.
        why: where its requests come from, if it does not exist yet.
    """

    name: str
    requests: tuple[Request, ...]
    constraints: tuple[Constraint, ...] = ()
    why: str = ""

    @property
    def alternatives(self) -> tuple[DeviceRequest, ...]:
        """Its requests with all their alternatives."""
        return tuple(one for request in self.requests for one in request.alternatives)


def read_claim(thing: Object) -> Claim:
    """Return what a ResourceClaim asks for."""
    return claim_of(full_name(thing), mapping(thing, "spec"))


def claim_of(name: str, spec: Object, *, why: str = "") -> Claim:
    """Return what the spec of a claim asks for."""
    devices = mapping(spec, "devices")
    return Claim(
        name=name,
        requests=tuple(map(_request, objects(devices, "requests"))),
        constraints=tuple(map(_constraint, objects(devices, "constraints"))),
        why=why,
    )


def _request(entry: Object) -> Request:
    name = text(entry, "name")
    if entries := objects(entry, "firstAvailable"):
        parts = tuple(_device_request(name, sub, alternative=text(sub, "name")) for sub in entries)
        return Request(name=name, alternatives=parts, has_alternatives=True)
    return Request(name=name, alternatives=(_device_request(name, mapping(entry, "exactly")),))


def _device_request(parent: str, entry: Object, *, alternative: str = "") -> DeviceRequest:
    return DeviceRequest(
        parent=parent,
        alternative=alternative,
        device_class=text(entry, "deviceClassName"),
        selectors=selectors_of(entry),
        mode=text(entry, "allocationMode") or EXACT,
        count=number(entry, "count", default=1),
        admin=entry.get("adminAccess") is True,
        tolerations=tuple(map(Toleration.of, objects(entry, "tolerations"))),
        capacities={
            name: nanos(amount) for name, amount in mapping(entry, "capacity", "requests").items()
        },
    )


def selectors_of(holder: Object) -> tuple[str, ...]:
    """Return the expressions of a request's or a class's selectors."""
    return tuple(text(selector, "cel", "expression") for selector in objects(holder, "selectors"))


def _constraint(entry: Object) -> Constraint:
    distinct = text(entry, "distinctAttribute")
    return Constraint(
        attribute=distinct or text(entry, "matchAttribute"),
        distinct=bool(distinct),
        requests=texts(entry, "requests"),
    )
