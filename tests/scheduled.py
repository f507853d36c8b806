"""A scheduler that gives out published devices in any order, as far as counters let it.

In: what a node publishes. Out: whether a device can be taken. Rule: one is free to be allocated
while of every counter that it consumes enough is left (KEP-4815).
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from dra_driver.slices.project import Projection
from packing import amounts


@dataclass
class Scheduler:
    """Gives out published devices, each once, as long as the counters that it consumes suffice.

    `ignoring` names a counter that it does not look at.
    """

    found: Projection
    ignoring: str = ""
    free: set[int] = field(default_factory=set)
    used: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.free = set(range(len(self.found.devices)))
        sets: Any = self.found.counter_sets
        self.most = {
            (each["name"], name): amount
            for each in sets
            for name, amount in amounts(each["counters"]).items()
        }

    def take(self, number: int) -> bool:
        wanted = self.wanted(number)
        if number not in self.free or any(
            self.used[key] + much > self.most[key] for key, much in wanted.items()
        ):
            return False
        self.free.discard(number)
        self.used.update(wanted)
        return True

    def give_back(self, number: int) -> None:
        self.free.add(number)
        self.used.subtract(self.wanted(number))

    def wanted(self, number: int) -> Counter[tuple[str, str]]:
        device: Any = self.found.devices[number]
        return Counter(
            {
                (each["counterSet"], name): amount
                for each in device.get("consumesCounters", ())
                for name, amount in amounts(each["counters"]).items()
                if name != self.ignoring
            }
        )
