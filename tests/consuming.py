"""A scheduler that gives out parts of one device, by the rules of consumable capacity (KEP-5075).

In: a device as it is published, and what claims ask for of its capacities, in bytes or counts. Out:
what each consumes. Rules: what is not asked for is consumed as the policy's default says, and
wholly without a policy; what is asked for is rounded up within the policy's range; all of it
together is at most what there is.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from resource_nvidia_com.quantity import quantity_bytes


@dataclass
class Scheduler:
    """Keeps account of one device."""

    device: Mapping[str, Any]
    used: Counter[str] = field(default_factory=Counter)

    def take(self, requests: Mapping[str, int]) -> dict[str, int] | None:
        """Return what a claim consumes of each capacity; None if it cannot have it."""
        found = self.fitting(requests)
        self.used.update(found or {})
        return found

    def give_back(self, consumed: Mapping[str, int]) -> None:
        """Take back what a claim consumed."""
        self.used.subtract(consumed)

    def fitting(self, requests: Mapping[str, int]) -> dict[str, int] | None:
        """Return what a claim would consume; None if it could not have it."""
        capacity = self.device["capacity"]
        if requests.keys() - capacity.keys():
            return None
        found: dict[str, int] = {}
        for name, one in capacity.items():
            much = _consumed(one, requests.get(name))
            if much is None or self.used[name] + much > quantity_bytes(one["value"]):
                return None
            found[name] = much
        return found

    def most(self, name: str) -> int:
        """Return the most of one capacity that a claim can have, asking for little else."""
        little = {
            each: quantity_bytes(one.get("requestPolicy", {}).get("validRange", {}).get("min", "0"))
            for each, one in self.device["capacity"].items()
        }
        low, high = 0, quantity_bytes(self.device["capacity"][name]["value"])
        while low < high:
            middle = (low + high + 1) // 2
            if self.fitting(little | {name: middle}) is None:
                high = middle - 1
            else:
                low = middle
        found = self.fitting(little | {name: low})
        return 0 if found is None else found[name]


def _consumed(capacity: Mapping[str, Any], asked: int | None) -> int | None:
    policy = capacity.get("requestPolicy", {})
    if asked is None:
        return quantity_bytes(policy.get("default", capacity["value"]))
    if "validRange" not in policy:
        return asked
    within = {name: quantity_bytes(value) for name, value in policy["validRange"].items()}
    found = max(asked, within["min"])
    if "step" in within:
        found = within["min"] + -(-(found - within["min"]) // within["step"]) * within["step"]
    return found if found <= within["max"] else None
