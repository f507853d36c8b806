"""What drivers have published, as the scheduler reads it: slices of any driver.

In: ResourceSlices and DeviceTaintRules as dicts. Out: `Slice` values. In resource.k8s.io/v1, a
slice is for one node, for those that a selector selects, for all, or each device names its own. A
DeviceTaintRule adds its taint to the devices that it names by driver, pool and device (KEP-5055).
Amounts are in billionths of their units, the precision of the API's quantities. Nodes with the same
GPUs have the same amounts, and each is kept once. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.admin.api.nodes import Node, Taint, selects
from dra_driver.admin.api.objects import nanos, quantity
from dra_driver.admin.cel.selector import Subject
from dra_driver.admin.cel.values import Semver
from dra_driver.devices.names import DRIVER_NAME, undivided_name
from dra_driver.kube.fields import Object, at, entries, mapping, number, objects, text
from dra_driver.slices.consumable import ALLOWS_MULTIPLE, REQUEST_POLICY


class DeviceId(NamedTuple):
    """A device's key: names of pools are a driver's own, names of devices a pool's."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        """Return it as the scheduler writes it."""
        return f"{self.driver}/{self.pool}/{self.device}"

    @property
    def share(self) -> str:
        """The kind of share of this driver that it is, by its name; empty for other devices."""
        if self.driver != DRIVER_NAME:
            return ""
        return self.device.removeprefix(undivided_name(self.device))[1:].rsplit("-", 3)[0]


class CounterId(NamedTuple):
    """A counter in a counter set of a pool."""

    counter_set: str
    counter: str


Amounts = Mapping[CounterId, int]


class Policy(Struct, frozen=True, kw_only=True):
    """What claims may consume of a capacity.

    Attributes:
        default: what a claim that does not ask for the capacity consumes.
        least: the smallest amount, of a range.
        step: amounts are the smallest plus a multiple of this.
        values: the allowed amounts, if they are not a range.
    """

    default: int | None = None
    least: int | None = None
    most: int | None = None
    step: int | None = None
    values: tuple[int, ...] = ()


class Capacity(Struct, frozen=True, kw_only=True):
    """A capacity of a device: how much there is, and how much may be requested."""

    total: int
    policy: Policy | None = None

    @property
    def default(self) -> int:
        """What a claim without a request consumes: the default, or without one, all (KEP-5075)."""
        default = None if self.policy is None else self.policy.default
        return self.total if default is None else default

    @property
    def least(self) -> int:
        """What every claim consumes at least."""
        if self.policy is None:
            return 0
        # Values are in ascending order.
        smallest = self.policy.values[0] if self.policy.values else self.policy.least
        return min(self.default, smallest or 0)


class Place(Struct, frozen=True, kw_only=True):
    """The nodes that something is for; none if nothing is set."""

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


class Device(Struct, frozen=True, kw_only=True):
    """A published device.

    Attributes:
        subject: what selectors can read of it.
        consumes: what it takes of its pool's counters.
        taints: its taints, including those of rules.
        place: its own nodes, in a slice whose devices name theirs.
        binds: whether a pod has to wait for it after it was allocated.
    """

    id: DeviceId
    subject: Subject
    capacities: Mapping[str, Capacity] = {}
    consumes: Amounts = {}
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


class Slice(Struct, frozen=True, kw_only=True):
    """A ResourceSlice. Slices of a pool are ordered by their names.

    Attributes:
        count: how many slices this generation of the pool has.
        place: its nodes; None if its devices name theirs.
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
        return any(
            device.place is not None and device.place.includes(node) for device in self.devices
        )


class TaintRule(Struct, frozen=True, kw_only=True):
    """A DeviceTaintRule: its taint, and the names that a device must have; empty for any."""

    driver: str
    pool: str
    device: str
    taint: Taint

    @classmethod
    def of(cls, thing: Object) -> "TaintRule | None":
        """Read one; None for a rule that selects nothing."""
        selector = at(thing, "spec", "deviceSelector")
        # Kubernetes 1.34 could also select by class and by CEL, which is not understood here.
        if not isinstance(selector, Mapping) or selector.keys() - {"driver", "pool", "device"}:
            return None
        taint = Taint.of(mapping(thing, "spec", "taint"))
        return cls(
            driver=text(selector, "driver"),
            pool=text(selector, "pool"),
            device=text(selector, "device"),
            taint=replace(taint, rule=text(thing, "metadata", "name")),
        )

    def concerns(self, device: DeviceId) -> bool:
        """Tell whether it taints a device."""
        return (
            self.driver in ("", device.driver)
            and self.pool in ("", device.pool)
            and self.device in ("", device.device)
        )


def readable_slices(things: Iterable[Object], rules: Iterable[TaintRule] = ()) -> Iterator[Slice]:
    """Yield the slices that can be read; a pool without all of its slices is incomplete."""
    rules = tuple(rules)
    for thing in things:
        with suppress(ValueError):
            yield read_slice(thing, rules)


def read_slice(thing: Object, rules: Iterable[TaintRule] = ()) -> Slice:
    """Return the content of a ResourceSlice. Raises ValueError for a wrong amount or version."""
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
            _device(
                DeviceId(driver, pool, text(device, "name")), device, rules, by_device=by_device
            )
            for device in objects(spec, "devices")
        ),
        counters=shared_counters(spec),
    )


def _device(
    identity: DeviceId, entry: Object, rules: tuple[TaintRule, ...], *, by_device: bool
) -> Device:
    capacity = mapping(entry, "capacity")
    return Device(
        id=identity,
        subject=Subject(
            driver=identity.driver,
            attributes={name: _value(raw) for name, raw in mapping(entry, "attributes").items()},
            capacity={name: quantity(text(amount, "value")) for name, amount in capacity.items()},
            allows_multiple=entry.get(ALLOWS_MULTIPLE) is True,
        ),
        capacities={name: capacity_of(shared) for name, shared in capacity.items()},
        consumes=consumed_counters(entry),
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
            return [Semver.parse(str(version)) for version in value]
        return value
    return None


def consumed_counters(device: Object) -> Amounts:
    """Return what a device takes of its pool's counters. Raises ValueError."""
    return _amounts(
        tuple(
            (text(counter, "counterSet"), name, text(amount, "value"))
            for counter in objects(device, "consumesCounters")
            for name, amount in mapping(counter, "counters").items()
        )
    )


@lru_cache(maxsize=4096)
def _amounts(texts: tuple[tuple[str, str, str], ...]) -> Amounts:
    amounts = {CounterId(counter_set, name): nanos(amount) for counter_set, name, amount in texts}
    return MappingProxyType(amounts)


def shared_counters(spec: Object) -> tuple[tuple[str, Mapping[str, int]], ...]:
    """Return the counter sets of a slice's spec, each with its name."""
    return tuple(
        (
            text(counter, "name"),
            {
                name: nanos(text(each, "value"))
                for name, each in mapping(counter, "counters").items()
            },
        )
        for counter in objects(spec, "sharedCounters")
    )


def capacity_of(entry: object) -> Capacity:
    """Return one capacity of a device. Raises ValueError."""
    total, policy = text(entry, "value"), at(entry, REQUEST_POLICY)
    if not isinstance(policy, Mapping):
        return _capacity(total, None)
    bounds = mapping(policy, "validRange")
    limits = (policy.get("default"), *(bounds.get(name) for name in ("min", "max", "step")))
    values = tuple(map(str, entries(policy, "validValues")))
    return _capacity(
        total, (tuple(None if limit is None else str(limit) for limit in limits), values)
    )


@lru_cache(maxsize=4096)
def _capacity(
    total: str, policy: tuple[tuple[str | None, ...], tuple[str, ...]] | None
) -> Capacity:
    if policy is None:
        return Capacity(total=nanos(total))
    limits, values = policy
    default, least, most, step = (None if limit is None else nanos(limit) for limit in limits)
    return Capacity(
        total=nanos(total),
        policy=Policy(
            default=default, least=least, most=most, step=step, values=tuple(map(nanos, values))
        ),
    )
