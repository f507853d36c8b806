"""Arranges a node's devices in one pool of ResourceSlices.

Rules: the limits of resource.k8s.io/v1. Devices and counters are in separate slices (Kubernetes
1.35 and newer). The scheduler takes slices in the order of their names, and devices in the order in
which they are listed. Pure; all but `new_tag` is deterministic to the byte. The writes that produce
the slices are in slices/publish/writes.py.
"""

import secrets
from collections.abc import Iterator, Sequence

from msgspec import Struct

from dra_driver.kube.fields import Object, mapping, objects

DEVICES_PER_SLICE = 64
"""The API allows 128, but only 64 if a device has taints, counters or list attributes. The lower
limit is always kept, so that the first taint changes one slice, not which devices are in which."""

COUNTER_SETS_PER_SLICE = 8


def new_tag() -> str:
    """Return eight random hexadecimal digits for a slice's name, which nobody can predict."""
    return secrets.token_hex(4)


class DesiredPool(Struct, frozen=True, kw_only=True):
    """The slices a node should have. Each of `contents` holds `devices` or `sharedCounters`.

    Their names are fixed, not random as in other drivers, so a create that is sent twice is a
    conflict and not a second slice. A name ends with the node's full name (at most 63 characters,
    as it is also a label), by which the admission policy own-node recognises the slice's owner.
    """

    driver: str
    node_name: str
    contents: tuple[Object, ...]

    def slice_name(self, index: int, *, tag: str = "") -> str:
        """Return the name of a slice: its index first, because the scheduler sorts by name."""
        return f"{index:05x}-{tag}{'-' if tag else ''}{self.driver}-{self.node_name}"

    def spec(self, index: int, *, generation: int) -> dict[str, object]:
        """Return the whole spec of one slice."""
        pool = {
            "name": self.node_name,
            "generation": generation,
            "resourceSliceCount": len(self.contents),
        }
        return {
            "driver": self.driver,
            "nodeName": self.node_name,
            "pool": pool,
            **self.contents[index],
        }


def build_slices(
    devices: Sequence[Object],
    *,
    driver: str,
    node_name: str,
    counter_sets: Sequence[Object] = (),
) -> DesiredPool:
    """Spread devices and counter sets over slices, counters first, in the order they are given.

    There is always at least one slice: an empty pool says that the node has no GPUs, and a missing
    pool says nothing. Raises ValueError if a name occurs twice, or a device consumes a counter that
    does not exist: the API server does not check that across slices, and the scheduler would ignore
    the whole pool.
    """
    _check(devices, counter_sets)
    contents: list[Object] = [
        {"sharedCounters": list(part)} for part in _parts(counter_sets, COUNTER_SETS_PER_SLICE)
    ]
    contents += [{"devices": list(part)} for part in _parts(devices, DEVICES_PER_SLICE)]
    return DesiredPool(
        driver=driver, node_name=node_name, contents=tuple(contents) or ({"devices": []},)
    )


def _check(devices: Sequence[Object], counter_sets: Sequence[Object]) -> None:
    counters: dict[str, frozenset[str]] = {}
    for counter_set in counter_sets:
        name = str(counter_set.get("name"))
        if name in counters:
            raise ValueError(f"two counter sets are named {name}")
        counters[name] = frozenset(mapping(counter_set, "counters"))
    names: set[str] = set()
    for device in devices:
        name = str(device.get("name"))
        if name in names:
            raise ValueError(f"two devices are named {name}")
        names.add(name)
        for used in objects(device, "consumesCounters"):
            known = counters.get(str(used.get("counterSet")))
            if known is None or not known.issuperset(mapping(used, "counters")):
                raise ValueError(f"device {name} consumes counters that are not published")


def _parts(entries: Sequence[Object], size: int) -> Iterator[Sequence[Object]]:
    for start in range(0, len(entries), size):
        yield entries[start : start + size]
