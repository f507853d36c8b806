"""The devices that a driver has published, pool by pool.

In: all ResourceSlices of one driver, as dicts. Out: `Pool` values with their devices in the order
in which the scheduler takes them, the counters there are, and what is wrong with a pool, if
anything is. Rules: of a pool its newest generation alone counts, and only once as many slices of it
are there as each of them says; a node's slices are not another's, whatever pool they say they are
of; slices come in order of their names; counters that do not exist and
device names that come twice make a pool invalid (KEP-4381, KEP-4815). Which resource name a device
serves is said by its attributes. Of capacities only those are read that several claims consume
together. A claim that does not ask for one consumes the default of its policy, or without one all
there is; one that asks for little consumes the policy's least amount (KEP-5075). Pure.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType

from dra_driver.devices.names import DRIVER_NAME
from dra_driver.fields import Object, mapping, nanos, number, objects, text
from dra_driver.slices.consumable import ALLOWS_MULTIPLE, REQUEST_POLICY

Counter = tuple[str, str]
"""A counter set of a pool, and a counter in it."""

Amounts = Mapping[Counter, int]
"""How much of each counter, in billionths of its unit: quantities of the API are that exact."""

_BLOCKING = frozenset({"NoSchedule", "NoExecute"})
"""Effects of taints that keep new claims away, unless they tolerate them."""

_NOTHING: Amounts = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """A capacity that several claims consume together, in billionths of its unit.

    Attributes:
        total: what they can have of it together.
        default: what a claim consumes of it that does not ask for it.
        least: what every claim consumes of it, whatever it asks for.
    """

    total: int
    default: int
    least: int


Capacities = Mapping[str, Capacity]

_NO_CAPACITIES: Capacities = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A published device.

    Attributes:
        name: unique in its pool.
        resource: the extended resource name that it serves; None if only claims that name its class
            get it.
        consumes: what it takes of its pool's counters.
        taints: those that keep new claims away, as kubectl writes them: key=value:effect.
        allows_multiple: whether several claims can have parts of it.
        capacities: what these consume together, by name; none of a device for one claim.
    """

    name: str
    resource: str | None
    consumes: Amounts
    taints: tuple[str, ...] = ()
    allows_multiple: bool = False
    capacities: Capacities = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The newest generation of a pool.

    Attributes:
        name: the pool's name, which claims name in their allocation.
        node: the node whose devices these are; empty if it is no single one.
        devices: in the scheduler's order.
        counters: what there is of each counter with nothing allocated.
        problem: why the scheduler gives out nothing of it; None if nothing is wrong.
    """

    name: str
    node: str
    devices: tuple[Device, ...]
    counters: Amounts
    problem: str | None = None


_CapacityTexts = tuple[str, str, str, str]
"""A capacity's name; how much there is, what is consumed without a request, and at least."""

_Contents = tuple[list[Device], dict[Counter, int]]
"""What a slice holds: devices, and what there is of each counter."""


@dataclass(slots=True)
class _Draft:
    """A generation of a pool as its slices come in; `contents` are by the names of the slices."""

    generation: int
    slices: int
    contents: dict[str, _Contents] = field(default_factory=dict)


def read_pools(slices: Iterable[Object]) -> list[Pool]:
    """Return the pools that these slices make up, by node and name."""
    reader = _Reader()
    drafts: dict[tuple[str, str], _Draft] = {}
    for one in slices:
        spec = mapping(one, "spec")
        pool = mapping(spec, "pool")
        generation = number(pool, "generation")
        key = text(spec, "nodeName"), text(pool, "name")
        draft = drafts.get(key)
        if draft is None or generation > draft.generation:
            draft = drafts[key] = _Draft(
                generation=generation,
                slices=number(pool, "resourceSliceCount"),
            )
        if generation == draft.generation:
            with suppress(ValueError):
                draft.contents[text(one, "metadata", "name")] = reader.contents(spec)
    return [_finished(node, name, draft) for (node, name), draft in sorted(drafts.items())]


def _finished(node: str, name: str, draft: _Draft) -> Pool:
    devices: list[Device] = []
    counters: dict[Counter, int] = {}
    for _, (of_slice, there) in sorted(draft.contents.items()):
        devices += of_slice
        counters |= there
    return Pool(
        name=name,
        node=node,
        devices=tuple(devices),
        counters=counters,
        problem=_problem(draft, devices, counters),
    )


def _problem(draft: _Draft, devices: list[Device], counters: Amounts) -> str | None:
    if len(draft.contents) != draft.slices:
        return (
            f"{len(draft.contents)} of {draft.slices} ResourceSlices of generation "
            f"{draft.generation} are there and can be read: its driver is writing them, or cannot"
        )
    names: set[str] = set()
    for device in devices:
        if device.name in names:
            return f"two devices are named {device.name}"
        names.add(device.name)
        if not device.consumes.keys() <= counters.keys():
            return f"device {device.name} consumes counters that are not published"
    return None


class _Reader:
    """Reads slices. Nodes with the same GPUs have the same amounts: each is kept once."""

    def __init__(self) -> None:
        self._amounts: dict[tuple[tuple[str, str, str], ...], Amounts] = {}
        self._capacities: dict[tuple[_CapacityTexts, ...], Capacities] = {}

    def contents(self, spec: Object) -> _Contents:
        """Return what a slice holds.

        Raises:
            ValueError: a quantity in it cannot be read.
        """
        return (
            [self._device(entry) for entry in objects(spec, "devices")],
            dict(self._counters(objects(spec, "sharedCounters"))),
        )

    def _device(self, entry: Object) -> Device:
        taints = objects(entry, "taints")
        allows_multiple = entry.get(ALLOWS_MULTIPLE) is True
        return Device(
            name=text(entry, "name"),
            resource=resource_name(mapping(entry, "attributes")),
            consumes=self._consumed(objects(entry, "consumesCounters")),
            taints=tuple(_taint(one) for one in taints if text(one, "effect") in _BLOCKING),
            allows_multiple=allows_multiple,
            capacities=self._shared(mapping(entry, "capacity"))
            if allows_multiple
            else _NO_CAPACITIES,
        )

    def _shared(self, capacity: Object) -> Capacities:
        key = tuple((name, *_capacity_texts(one)) for name, one in capacity.items())
        found = self._capacities.get(key)
        if found is None:
            found = {name: self._capacity(*texts) for name, *texts in key}
            self._capacities[key] = found
        return found

    def _capacity(self, total: str, default: str, least: str) -> Capacity:
        consumed = nanos(default)
        return Capacity(total=nanos(total), default=consumed, least=min(consumed, nanos(least)))

    def _counters(self, sets: Iterable[Object]) -> Iterator[tuple[Counter, int]]:
        for one in sets:
            for name, entry in mapping(one, "counters").items():
                yield (text(one, "name"), name), nanos(text(entry, "value"))

    def _consumed(self, entries: tuple[Object, ...]) -> Amounts:
        if not entries:
            return _NOTHING
        key = tuple(
            (text(entry, "counterSet"), name, text(amount, "value"))
            for entry in entries
            for name, amount in mapping(entry, "counters").items()
        )
        found = self._amounts.get(key)
        if found is None:
            found = {(counter_set, name): nanos(amount) for counter_set, name, amount in key}
            self._amounts[key] = found
        return found


def _capacity_texts(capacity: object) -> tuple[str, str, str]:
    """Return how much there is, what is consumed without a request, and by the smallest one."""
    total = text(capacity, "value")
    policy = mapping(capacity, REQUEST_POLICY)
    values = policy.get("validValues")
    least = text(policy, "validRange", "min")
    if isinstance(values, list) and values:  # in ascending order
        least = str(values[0])
    return total, text(policy, "default") or total, least or "0"


def resource_name(attributes: Object) -> str | None:
    """Return the extended resource name that a device serves, by its attributes.

    A share serves the name that it says. A whole GPU or MIG device that is divided into shares
    serves none: only a claim that asks for its class gets it.
    """
    if _attribute(attributes, "sharedAs"):
        return None
    if name := _attribute(attributes, "resourceName"):
        return name
    match _attribute(attributes, "type"):
        case "gpu":
            return "nvidia.com/gpu"
        case "mig":
            return f"nvidia.com/mig-{_attribute(attributes, 'profile').replace('+', '.')}"
        case _:
            return None


def _attribute(attributes: Object, name: str) -> str:
    """Return a string attribute of the driver's own domain, which its name may say or not."""
    return text(mapping(attributes, name) or mapping(attributes, f"{DRIVER_NAME}/{name}"), "string")


def _taint(taint: Object) -> str:
    value = text(taint, "value")
    return f"{text(taint, 'key')}{f'={value}' if value else ''}:{text(taint, 'effect')}"
