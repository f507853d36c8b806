"""A scheduler's first fit over published devices, to see how many requests an order lets fit.

In: devices in the order they are offered, with the counters they consume, and a stream of requests
that come and go. Out: how many found no room, in requests and in memory. Rule: the DRA allocator
takes the first free device of what is asked for whose counters are all left (KEP-4815).
"""

import heapq
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra_driver.slices.project import Projection
from resource_nvidia_com.quantity import Quantity

WHOLE = "gpu"

MIXES: Mapping[str, Mapping[str, float]] = {
    "every size": {
        "1g.10gb": 4,
        "1g.20gb": 1,
        "2g.20gb": 2,
        "3g.40gb": 2,
        "4g.40gb": 1,
        WHOLE: 0.7,
    },
    "small and whole": {"1g.10gb": 8, WHOLE: 1},
    "small, half, whole": {"1g.10gb": 3, "4g.40gb": 1, WHOLE: 0.5},
    "1g and 4g": {"1g.10gb": 3, "4g.40gb": 1},
    "3g and 4g": {"3g.40gb": 1, "4g.40gb": 1, "1g.10gb": 1},
    "1g, 2g, whole": {"1g.10gb": 3, "2g.20gb": 2, WHOLE: 0.5},
    "1g, 2g, 3g": {"1g.10gb": 3, "2g.20gb": 2, "3g.40gb": 1},
    "1g and 3g": {"1g.10gb": 3, "3g.40gb": 1},
}
"""What people ask for, with weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One device: its name, what it is asked for as, and what it consumes of which set."""

    name: str
    kind: str
    memory: int
    """Bytes."""

    counter_set: str
    counters: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request: when it comes, for what, and how long it stays."""

    at: float
    kind: str
    stays: float


def offers(published: Projection) -> list[Offer]:
    """Return the published devices that consume counters, in their order."""
    return [_offer(device) for device in published.devices if "consumesCounters" in device]


def by_name(found: Sequence[Offer]) -> list[Offer]:
    """Return the devices GPU after GPU in the order of their names, as NVIDIA's driver does."""
    return sorted(found, key=lambda offer: (len(offer.counter_set), offer.counter_set, offer.name))


def stream(seed: int, mix: Mapping[str, float], *, load: float, count: int) -> list[Arrival]:
    """Return random requests; `load` is how many would be there at a time if all fitted."""
    chance = random.Random(seed)  # noqa: S311 (a simulation, the same each time)
    kinds, weights = list(mix), list(mix.values())
    now, found = 0.0, []
    for _ in range(count):
        now += chance.expovariate(load)
        kind = chance.choices(kinds, weights)[0]
        found.append(Arrival(at=now, kind=kind, stays=chance.expovariate(1.0)))
    return found


def turned_away(
    found: Sequence[Offer], counter_sets: Sequence[Mapping[str, Any]], arrivals: Sequence[Arrival]
) -> tuple[int, int]:
    """Return how many requests found no room, and how much memory they asked for."""
    left = {entry["name"]: amounts(entry["counters"]) for entry in counter_sets}
    kinds: dict[str, list[Offer]] = {}
    for offer in found:
        kinds.setdefault(offer.kind, []).append(offer)
    leaving: list[tuple[float, int, Offer]] = []
    requests = memory = 0
    for number, arrival in enumerate(arrivals):
        while leaving and leaving[0][0] <= arrival.at:
            _, _, offer = heapq.heappop(leaving)
            take(left[offer.counter_set], offer, -1)
        for offer in kinds[arrival.kind]:
            if fits(left[offer.counter_set], offer):
                take(left[offer.counter_set], offer, 1)
                heapq.heappush(leaving, (arrival.at + arrival.stays, number, offer))
                break
        else:
            requests += 1
            memory += kinds[arrival.kind][0].memory
    return requests, memory


def _offer(device: Mapping[str, Any]) -> Offer:
    attributes = device["attributes"]
    is_mig = attributes["type"]["string"] == "mig"
    (consumed,) = device["consumesCounters"]
    return Offer(
        name=device["name"],
        kind=attributes["profile"]["string"] if is_mig else WHOLE,
        memory=amounts(device["capacity"])["memory"],
        counter_set=consumed["counterSet"],
        counters={name: n for name, n in amounts(consumed["counters"]).items() if n},
    )


def amounts(counters: Mapping[str, Any]) -> dict[str, int]:
    """Return counters as numbers."""
    return {name: Quantity.parse(amount["value"]).whole for name, amount in counters.items()}


def fits(left: Mapping[str, int], offer: Offer) -> bool:
    """Tell whether a device can be allocated with this much left."""
    return all(left[name] >= amount for name, amount in offer.counters.items())


def take(left: dict[str, int], offer: Offer, sign: int) -> None:
    """Allocate a device (1), or give it back (-1)."""
    for name, amount in offer.counters.items():
        left[name] -= sign * amount
