"""The pools whose devices a node has, as the scheduler gathers them.

Only the newest generation of a pool counts, and only once all its slices exist. Two devices or two
counter sets with the same name, or a missing counter, make a pool invalid (KEP-4381, KEP-4815).
Pools with devices that a pod has to wait for come last. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from msgspec import Struct

from dra_driver.admin.api.nodes import Node
from dra_driver.admin.api.slices import CounterId, Device, Slice


class Fault(StrEnum):
    """What keeps the scheduler from allocating anything from a pool."""

    INCOMPLETE = "incomplete"
    INVALID = "invalid"


class Pool(Struct, frozen=True, kw_only=True):
    """A pool, as a node sees it.

    Attributes:
        devices: those for this node, in order; if a slice selects nodes device by device, the
            place of each device has to be checked, too.
        others: those of other nodes, which use the same counters.
        counters: the total of each counter.
        fault: why nothing is allocated from it; None if all is well.
        problem: the same in words.
    """

    driver: str
    name: str
    devices: tuple[Device, ...] = ()
    others: tuple[Device, ...] = ()
    counters: Mapping[CounterId, int] = {}
    fault: Fault | None = None
    problem: str = ""


class Pools:
    """All slices of a cluster, found by node and by pool."""

    def __init__(self, slices: Iterable[Slice]) -> None:
        self._by_node: dict[str, list[Slice]] = {}
        self._anywhere: list[Slice] = []
        self._by_pool: dict[tuple[str, str], list[Slice]] = {}
        for slice_ in slices:
            if slice_.place is not None and slice_.place.node:
                self._by_node.setdefault(slice_.place.node, []).append(slice_)
            else:
                self._anywhere.append(slice_)
            self._by_pool.setdefault((slice_.driver, slice_.pool), []).append(slice_)

    @property
    def drivers(self) -> tuple[str, ...]:
        """The drivers that have published slices."""
        return tuple(sorted({driver for driver, _ in self._by_pool}))

    def on(self, node: Node) -> list[Pool]:
        """Return the pools with devices for a node."""
        there = (*self._by_node.get(node.name, ()), *self._anywhere)
        return sorted(
            self._newest(slice_ for slice_ in there if slice_.concerns(node)),
            key=lambda pool: (any(device.binds for device in pool.devices), pool.driver, pool.name),
        )

    def by_node(self) -> list[tuple[str, Pool]]:
        """Return (node, pool) of all pools, by node; the name is empty for no single node.

        Slices of different nodes make different pools, even if these have the same name.
        """
        places = {**self._by_node, "": self._anywhere}
        found = [(node, pool) for node, there in places.items() for pool in self._newest(there)]
        return sorted(found, key=lambda each: (each[0], each[1].name))

    def _newest(self, slices: Iterable[Slice]) -> Iterator[Pool]:
        newest: dict[tuple[str, str], list[Slice]] = {}
        for slice_ in slices:
            key = (slice_.driver, slice_.pool)
            so_far = newest.get(key)
            if so_far is None or slice_.generation > so_far[0].generation:
                newest[key] = [slice_]
            elif slice_.generation == so_far[0].generation:
                so_far.append(slice_)
        yield from filter(None, (self._pool(key, those) for key, those in newest.items()))

    def _pool(self, key: tuple[str, str], slices: list[Slice]) -> Pool | None:
        """Return a pool; None if its newest generation has nothing for the node."""
        driver, name = key
        generation, count = slices[0].generation, slices[0].count
        rest: list[Slice] = []
        if len(slices) != count:
            everywhere = self._by_pool[key]
            if any(each.generation > generation for each in everywhere):
                return None
            mine = {each.name for each in slices}
            whole = [each for each in everywhere if each.generation == generation]
            rest = [each for each in whole if each.name not in mine]
            if len(whole) != count:
                problem = (
                    f"{len(whole)} of {count} ResourceSlices of generation {generation} of the "
                    f"pool exist: the driver {driver} is still writing them, or cannot"
                )
                return Pool(driver=driver, name=name, fault=Fault.INCOMPLETE, problem=problem)
        return _built(driver, name, sorted(slices, key=lambda each: each.name), rest)


def _built(driver: str, name: str, slices: list[Slice], rest: list[Slice]) -> Pool:
    # A slice with counters has no devices since Kubernetes 1.35, and none of them counts.
    devices = tuple(device for each in slices if not each.counters for device in each.devices)
    others = tuple(device for each in rest if not each.counters for device in each.devices)
    sets = [counter for each in (*slices, *rest) for counter in each.counters]
    counters = {
        CounterId(counter_set, counter): amount
        for counter_set, amounts in sets
        for counter, amount in amounts.items()
    }
    problem = next(_problems(devices, others, [name for name, _ in sets], counters), "")
    if problem:
        return Pool(driver=driver, name=name, fault=Fault.INVALID, problem=problem)
    return Pool(driver=driver, name=name, devices=devices, others=others, counters=counters)


def _problems(
    devices: tuple[Device, ...],
    others: tuple[Device, ...],
    sets: list[str],
    counters: Mapping[CounterId, int],
) -> Iterator[str]:
    names: set[str] = set()
    for device in devices:
        if device.id.device in names:
            yield f"two of its devices are named {device.id.device}"
        names.add(device.id.device)
    if len(sets) != len(set(sets)):
        yield "two of its counter sets have the same name"
    for device in (*devices, *others):
        for counter in device.consumes.keys() - counters.keys():
            yield (
                f"device {device.id.device} consumes the counter {counter.counter} of "
                f"{counter.counter_set}, which is not published"
            )
