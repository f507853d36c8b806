"""Made-up claims, slices and allocations: questions for who says whether a claim fits.

In: a seed. Out: objects as the API server would hold them, for one node. They are small and tight,
so that each rule of the scheduler's allocator decides some of them: selectors that are false or
fail, taints, counters, consumable capacity, constraints, alternatives, all devices, admin access,
pools that are incomplete or invalid, devices of other nodes.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]

NODE = {"metadata": {"name": "node-1", "labels": {"zone": "a", "gpus": "8"}}}
DRIVERS = ("gpu.nvidia.com", "nic.example.com")
MODELS = ("A100", "H100")
SET = "set"

SELECTORS = (
    "device.driver == 'gpu.nvidia.com'",
    "device.attributes['gpu.nvidia.com'].?model.orValue('') == 'H100'",
    "'model' in device.attributes['gpu.nvidia.com']",
    "device.attributes[device.driver].index < 3",
    "device.attributes[device.driver].index in [0, 2, 4]",
    "device.attributes[device.driver].?rare.orValue(1) == 1",
    "!has(device.attributes[device.driver].rare) || device.attributes[device.driver].rare > 1",
    "device.attributes[device.driver].version.isGreaterThan(semver('1.5.0'))",
    "device.capacity[device.driver].memory.compareTo(quantity('8Gi')) >= 0",
    "device.allowMultipleAllocations",
    "!device.allowMultipleAllocations",
)
FAILING = (
    "device.attributes[device.driver].rare == 2",
    "device.attributes['gpu.nvidia.com'].model == 'H100'",
    "device.attributes[device.driver].index == 1 || device.attributes[device.driver].rare == 2",
)
"""They fail on devices that lack the attribute; so they do not always end a search."""


@dataclass(frozen=True)
class Case:
    """What there is, and what is asked for."""

    slices: list[Object]
    claims: list[Object]
    taken: list[Object]
    classes: list[Object] = field(default_factory=list)

    def question(self) -> Object:
        """The case as allocation-judge reads it."""
        return {
            "slices": self.slices,
            "classes": self.classes,
            "node": NODE,
            "claims": self.claims,
            "taken": self.taken,
        }


def case(seed: int) -> Case:
    """A case that is the same for the same seed."""
    return _Maker(random.Random(seed)).case()  # noqa: S311 (cases, no secrets)


class _Maker:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def _maybe(self, percent: float) -> bool:
        return self._chance.random() * 100 < percent

    def case(self) -> Case:
        slices = [
            one for number in range(self._chance.choice([1, 1, 2, 3])) for one in self._pool(number)
        ]
        self._chance.shuffle(slices)
        devices = [
            (one["spec"], device) for one in slices for device in one["spec"].get("devices", [])
        ]
        return Case(
            slices=slices,
            claims=[
                self._claim(f"wanted-{n}") for n in range(self._chance.choice([1, 1, 1, 1, 2, 3]))
            ],
            taken=list(self._taken(devices)),
            classes=[
                self._class("any"),
                self._class("some", self._chance.choice(SELECTORS)),
                self._class("two", *self._chance.sample(SELECTORS, 2)),
                self._class("fails", self._chance.choice(FAILING)),
            ],
        )

    def _class(self, name: str, *selectors: str) -> Object:
        return {"metadata": {"name": name}, "spec": {"selectors": list(map(_selector, selectors))}}

    def _pool(self, number: int) -> Iterator[Object]:
        driver = self._chance.choice(DRIVERS)
        name = self._chance.choice(["node-1", f"pool-{number}"])
        by_device = self._maybe(15)
        counted = self._maybe(45)
        shared = self._maybe(30)
        count = self._chance.randint(1, 6)
        names = [f"dev-{n}" for n in range(count)]
        if self._maybe(3):
            names[-1] = names[0]
        devices = [
            self._device(one, n, counted=counted, shared=shared, by_device=by_device)
            for n, one in enumerate(names)
        ]
        cut = self._chance.randint(0, count) if self._maybe(40) else count
        contents: list[Object] = [{"devices": one} for one in (devices[:cut], devices[cut:]) if one]
        if counted and not self._maybe(3):
            amounts = {"a": self._chance.randint(2, 6), "b": self._chance.randint(2, 6)}
            contents.append({"sharedCounters": [{"name": SET, "counters": _values(amounts)}]})
        wanted = len(contents) + self._maybe(4)
        generation = self._chance.randint(1, 3)
        for place, one in enumerate(contents):
            old = self._maybe(2)
            yield {
                "metadata": {"name": f"{self._chance.randint(0, 3)}-{driver}-{number}-{place}"},
                "spec": {
                    "driver": driver,
                    "pool": {
                        "name": name,
                        "generation": generation - old,
                        "resourceSliceCount": wanted,
                    },
                    **({"perDeviceNodeSelection": True} if by_device else self._place()),
                    **one,
                },
            }

    def _place(self) -> Object:
        return self._chance.choice(
            [
                *[{"nodeName": "node-1"}] * 6,
                {"nodeName": "node-2"},
                {"allNodes": True},
                {"nodeSelector": self._node_selector()},
            ]
        )

    def _node_selector(self) -> Object:
        requirement = self._chance.choice(
            [
                {"key": "zone", "operator": "In", "values": ["a", "b"]},
                {"key": "zone", "operator": "NotIn", "values": ["a"]},
                {"key": "gpus", "operator": "Gt", "values": ["4"]},
                {"key": "rack", "operator": "Exists"},
                {"key": "rack", "operator": "DoesNotExist"},
            ]
        )
        return {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}

    def _device(
        self, name: str, number: int, *, counted: bool, shared: bool, by_device: bool
    ) -> Object:
        chance = self._chance
        made: Object = {
            "name": name,
            "attributes": {
                "index": {"int": number},
                "version": {"version": chance.choice(["1.0.0", "1.5.0", "2.1.0-rc.1"])},
                "example.com/group": {"string": chance.choice(["x", "y"])},
            },
            "capacity": {"memory": {"value": chance.choice(["4Gi", "8Gi", "16Gi"])}},
        }
        if self._maybe(80):
            made["attributes"]["gpu.nvidia.com/model"] = {"string": chance.choice(MODELS)}
        if self._maybe(50):
            made["attributes"]["rare"] = {"int": chance.randint(1, 2)}
        if self._maybe(60):
            made["attributes"]["example.com/rack"] = chance.choice(
                [{"int": 1}, {"int": 2}, {"string": "1"}, {"bool": True}]
            )
        if counted and self._maybe(80):
            amounts = {
                key: chance.randint(1, 3) for key in chance.sample(["a", "b"], chance.randint(1, 2))
            }
            if self._maybe(1):
                amounts["missing"] = 1
            made["consumesCounters"] = [{"counterSet": SET, "counters": _values(amounts)}]
        if self._maybe(20):
            made["taints"] = [self._taint()]
        if shared and self._maybe(80):
            made["allowMultipleAllocations"] = True
            made["capacity"] = self._capacities()
        if by_device:
            made |= self._place()
        if self._maybe(2):
            made["bindingConditions"], made["bindingFailureConditions"] = ["ok"], ["bad"]
        return made

    def _taint(self) -> Object:
        return {
            "key": "example.com/broken",
            "value": self._chance.choice(["", "very"]),
            "effect": self._chance.choice(["NoSchedule", "NoExecute", "None"]),
        }

    def _capacities(self) -> Object:
        chance = self._chance
        ranged = {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}
        bounded = {"default": "2Gi", "validRange": {"min": "2Gi", "max": "6Gi", "step": "2Gi"}}
        valued = {"default": "2Gi", "validValues": ["2Gi", "4Gi"]}
        fine = {"default": "500m", "validRange": {"min": "250m", "step": "250m"}}
        policies: list[Object] = [
            {},
            *({"requestPolicy": one} for one in ({"default": "0"}, ranged, bounded, valued)),
        ]
        found = {"memory": {"value": "8Gi", **chance.choice(policies)}}
        if self._maybe(40):
            found["cores"] = {"value": "2", **chance.choice([{}, {"requestPolicy": fine}])}
        return found

    def _taken(self, devices: list[tuple[Object, Object]]) -> Iterator[Object]:
        for number, (spec, device) in enumerate(devices):
            if not self._maybe(25):
                continue
            result = {
                "request": "r",
                "driver": spec["driver"],
                "pool": spec["pool"]["name"],
                "device": device["name"],
            }
            if device.get("allowMultipleAllocations"):
                result["shareID"] = f"00000000-0000-4000-8000-{number:012}"
                if self._maybe(90):
                    amounts = {
                        "memory": self._chance.choice(["1Gi", "2Gi", "4Gi"]),
                        "cores": "500m",
                    }
                    result["consumedCapacity"] = {
                        name: amounts[name] for name in device["capacity"]
                    }
            if self._maybe(10):
                result["adminAccess"] = True
            yield {
                "metadata": {"namespace": "team", "name": f"taken-{number}"},
                "status": {
                    "allocation": {"devices": {"results": [result]}},
                    "reservedFor": [
                        {"resource": "pods", "name": f"pod-{number}", "uid": str(number)}
                    ],
                },
            }

    def _claim(self, name: str) -> Object:
        chance = self._chance
        names = [f"r{n}" for n in range(chance.choice([1, 1, 1, 2, 3]))]
        requests = [self._request(one) for one in names]
        devices: Object = {"requests": requests}
        if self._maybe(30):
            devices["constraints"] = [self._constraint(names)]
        return {"metadata": {"namespace": "team", "name": name}, "spec": {"devices": devices}}

    def _constraint(self, names: list[str]) -> Object:
        chance = self._chance
        attribute = chance.choice(
            [
                "example.com/rack",
                "example.com/group",
                "gpu.nvidia.com/index",
                "gpu.nvidia.com/model",
            ]
        )
        made = {chance.choice(["matchAttribute", "distinctAttribute"]): attribute}
        if self._maybe(40):
            made["requests"] = chance.sample(names, chance.randint(1, len(names)))
        return made

    def _request(self, name: str) -> Object:
        if self._maybe(25):
            alternatives = [
                {"name": f"s{n}", **self._wish()} for n in range(self._chance.randint(1, 3))
            ]
            return {"name": name, "firstAvailable": alternatives}
        made = self._wish()
        if self._maybe(10):
            made["adminAccess"] = True
        return {"name": name, "exactly": made}

    def _wish(self) -> Object:
        chance = self._chance
        made: Object = {
            "deviceClassName": chance.choices(
                ["any", "some", "two", "fails", "none"], [80, 14, 4, 2, 0.5]
            )[0],
            "selectors": [
                _selector(chance.choice(SELECTORS)) for _ in range(chance.choice([0, 0, 0, 1, 2]))
            ],
        }
        if self._maybe(2):
            made["selectors"].append(_selector(chance.choice(FAILING)))
        if self._maybe(15):
            made["allocationMode"] = "All"
        else:
            made |= {
                "allocationMode": "ExactCount",
                "count": chance.choice([1, 1, 1, 1, 2, 3, 17, 33]),
            }
            if made["count"] > 3 and self._maybe(90):
                made["count"] = 2
        if self._maybe(25):
            made["tolerations"] = [
                chance.choice(
                    [
                        {"operator": "Exists"},
                        {"key": "example.com/broken", "operator": "Exists", "effect": "NoSchedule"},
                        {"key": "example.com/broken", "operator": "Equal", "value": "very"},
                        {"key": "example.com/other", "operator": "Exists"},
                    ]
                )
            ]
        if self._maybe(25):
            amounts = {"memory": chance.choice(["1Gi", "1500Mi", "3Gi", "5Gi", "9Gi"])}
            if self._maybe(30):
                amounts["cores"] = chance.choice(["100m", "300m", "1", "1500m"])
            made["capacity"] = {"requests": amounts}
        return made


def _selector(text: str) -> Object:
    return {"cel": {"expression": text}}


def _values(amounts: dict[str, int]) -> Object:
    return {name: {"value": str(amount)} for name, amount in amounts.items()}
