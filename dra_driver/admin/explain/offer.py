"""What drivers have published, as the scheduler reads it: any driver's slices.

In: ResourceSlices and DeviceTaintRules as dicts. Out: `Slice` values. Rules: resource.k8s.io/v1; a
slice is for one node, for those that a selector selects, for all, or says so device by device; a
DeviceTaintRule adds its taint to the devices that it names by driver, pool and device (KEP-5055).
Amounts are in billionths of their units. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dra_driver.admin.cel.selector import Subject
from dra_driver.admin.cel.values import Semver
from dra_driver.admin.explain.nodes import Node, Taint, selects
from dra_driver.fields import Object, at, mapping, nanos, number, objects, quantity, text


class DeviceId(NamedTuple):
    """Which device: names of pools are a driver's own, names of devices a pool's."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        """Return it as the scheduler writes it."""
        return f"{self.driver}/{self.pool}/{self.device}"


class CounterId(NamedTuple):
    """A counter in a counter set of a pool."""

    counter_set: str
    counter: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What claims may consume of a capacity.

    Attributes:
        default: what a claim consumes that does not ask for it.
        least: the smallest amount, of a range.
        most: the largest, if there is one.
        step: what amounts are multiples of, from the smallest on.
        values: the amounts that there are, if they are no range.
    """

    default: int | None = None
    least: int | None = None
    most: int | None = None
    step: int | None = None
    values: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """A capacity of a device: how much there is, and what may be asked of it."""

    total: int
    policy: Policy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """For which nodes something is; for none if nothing is set."""

    node: str = ""
    everywhere: bool = False
    selector: Object | None = None

    @classmethod
    def of(cls, holder: Object) -> "Place":
        """Read it from a slice or a device."""
        selector = mapping(holder, "nodeSelector")
        return cls(
            node=text(holder, "nodeName"),
            everywhere=holder.get("allNodes") is True,
            selector=selector or None,
        )

    def includes(self, node: Node) -> bool:
        """Tell whether a node is among them."""
        if self.node:
            return self.node == node.name
        return self.everywhere or (self.selector is not None and selects(self.selector, node))


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A published device.

    Attributes:
        id: which one.
        subject: what selectors can read of it.
        capacities: by name.
        consumes: what it takes of its pool's counters.
        taints: its taints, those of rules among them.
        place: its own nodes, in a slice that says so device by device.
        binds: whether a pod has to wait for it after it was allocated.
    """

    id: DeviceId
    subject: Subject
    capacities: Mapping[str, Capacity] = field(default_factory=dict)
    consumes: Mapping[CounterId, int] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    place: Place | None = None
    binds: bool = False

    @property
    def shared(self) -> bool:
        """Whether several claims can have parts of it."""
        return self.subject.allows_multiple

    def attribute(self, name: str) -> object:
        """Return the value of an attribute by its full name; None if there is none."""
        attributes = self.subject.attributes
        if name in attributes:
            return attributes[name]
        domain, _, own = name.partition("/")
        return attributes.get(own) if domain == self.id.driver else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A ResourceSlice.

    Attributes:
        name: by which slices of a pool are ordered.
        driver: who published it.
        pool: of which pool it is a part.
        generation: of which generation of that pool.
        count: how many slices that generation has.
        place: its nodes; None if its devices say theirs.
        devices: in their order.
        counters: counter sets by name.
    """

    name: str
    driver: str
    pool: str
    generation: int
    count: int
    place: Place | None
    devices: tuple[Device, ...] = ()
    counters: tuple[tuple[str, Mapping[str, int]], ...] = ()

    def concerns(self, node: Node) -> bool:
        """Tell whether anything in it is for a node."""
        if self.place is not None:
            return self.place.includes(node)
        return any(one.place is not None and one.place.includes(node) for one in self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaintRule:
    """A DeviceTaintRule: its taint, and the names that a device must have; empty for any."""

    driver: str
    pool: str
    device: str
    taint: Taint

    @classmethod
    def of(cls, thing: Object) -> "TaintRule | None":
        """Read one; None for a rule that selects nothing."""
        selector = at(thing, "spec", "deviceSelector")
        if not isinstance(selector, Mapping):
            return None
        return cls(
            driver=text(selector, "driver"),
            pool=text(selector, "pool"),
            device=text(selector, "device"),
            taint=Taint.of(mapping(thing, "spec", "taint")),
        )

    def concerns(self, device: DeviceId) -> bool:
        """Tell whether it taints a device."""
        return (
            self.driver in ("", device.driver)
            and self.pool in ("", device.pool)
            and self.device in ("", device.device)
        )


def read_slice(thing: Object, rules: Iterable[TaintRule] = ()) -> Slice:
    """Return what a ResourceSlice says.

    Raises:
        ValueError: a quantity or a version in it cannot be read.
    """
    spec = mapping(thing, "spec")
    driver, pool = text(spec, "driver"), text(spec, "pool", "name")
    by_device = spec.get("perDeviceNodeSelection") is True
    rules = tuple(rules)
    return Slice(
        name=text(thing, "metadata", "name"),
        driver=driver,
        pool=pool,
        generation=number(spec, "pool", "generation"),
        count=number(spec, "pool", "resourceSliceCount"),
        place=None if by_device else Place.of(spec),
        devices=tuple(
            _device(DeviceId(driver, pool, text(one, "name")), one, rules, by_device=by_device)
            for one in objects(spec, "devices")
        ),
        counters=tuple(
            (text(one, "name"), _amounts(mapping(one, "counters")))
            for one in objects(spec, "sharedCounters")
        ),
    )


def _device(
    identity: DeviceId, entry: Object, rules: tuple[TaintRule, ...], *, by_device: bool
) -> Device:
    capacity = mapping(entry, "capacity")
    return Device(
        id=identity,
        subject=Subject(
            driver=identity.driver,
            attributes={name: _value(one) for name, one in mapping(entry, "attributes").items()},
            capacity={name: quantity(text(one, "value")) for name, one in capacity.items()},
            allows_multiple=entry.get("allowMultipleAllocations") is True,
        ),
        capacities={name: _capacity(one) for name, one in capacity.items()},
        consumes={
            CounterId(text(one, "counterSet"), name): amount
            for one in objects(entry, "consumesCounters")
            for name, amount in _amounts(mapping(one, "counters")).items()
        },
        taints=(
            *map(Taint.of, objects(entry, "taints")),
            *(rule.taint for rule in rules if rule.concerns(identity)),
        ),
        place=Place.of(entry) if by_device else None,
        binds=bool(entry.get("bindingConditions")),
    )


def _value(attribute: object) -> object:
    """Return the one value that an attribute has, as CEL sees it."""
    for kind, value in mapping(attribute).items():
        if kind == "version":
            return Semver.parse(str(value))
        if kind == "versions" and isinstance(value, list):
            return [Semver.parse(str(one)) for one in value]
        return value
    return None


def _capacity(entry: object) -> Capacity:
    policy = mapping(entry).get("requestPolicy")
    return Capacity(
        total=nanos(text(entry, "value")),
        policy=_policy(policy) if isinstance(policy, Mapping) else None,
    )


def _policy(entry: Object) -> Policy:
    values = entry.get("validValues")
    bounds = mapping(entry, "validRange")
    return Policy(
        default=_optional(entry, "default"),
        least=_optional(bounds, "min"),
        most=_optional(bounds, "max"),
        step=_optional(bounds, "step"),
        values=tuple(map(nanos, values)) if isinstance(values, list) else (),
    )


def _optional(holder: Object, key: str) -> int | None:
    return nanos(holder[key]) if key in holder else None


def _amounts(counters: Object) -> dict[str, int]:
    return {name: nanos(text(one, "value")) for name, one in counters.items()}
