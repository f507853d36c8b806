"""Claims and pods that a hostile tenant makes in its namespace, each kind an act of a soak. Pure.

The API server refuses many of them; the driver has to cope with those that it accepts. They ask
only for the hostile tenant's own GPUs, because quotas have to keep a tenant from taking all GPUs.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from testbed.api import Object
from testbed.claims import claim, gpu_config, opaque
from testbed.driver import DRIVER_NAME

from chaos.workloads import MIG_CLASS, pod_of

_VERSION = "resource.nvidia.com/v1beta1"
DEEP = 4000
"""Nested lists of a config: deeper than Python's limit of recursion."""

_MOST = 10 * 1024
"""The most bytes that the API server accepts for the parameters of a config."""


@dataclass(frozen=True, slots=True)
class Odd:
    """What an act makes; claims are made before pods, and `hurried` ones deleted at once."""

    claims: tuple[Object, ...]
    pods: tuple[Object, ...] = ()
    is_hurried: bool = False


def only(gpus: Sequence[str], field: str = "uuid") -> list[Object]:
    """Return the selectors of a request for GPUs, by UUID, or by `parentUUID` for their parts."""
    attribute = f"device.attributes['{DRIVER_NAME}'].?{field}.orValue('')"
    return [{"cel": {"expression": f"{attribute} in {list(gpus)}"}}]


def with_configs(body: Object, *configs: object, driver: str = DRIVER_NAME) -> Object:
    """Return a claim with opaque configs for a driver."""
    devices = body["spec"]["devices"]
    more = opaque(*configs, driver=driver)
    return body | {"spec": {"devices": devices | {"config": [*devices.get("config", []), *more]}}}


class _Maker:
    """Makes claims of an act, and a pod for each."""

    def __init__(self, chance: random.Random, gpus: Sequence[str]) -> None:
        self.chance = chance
        self.name = f"odd-{chance.randrange(16**8):08x}"
        self.whole = only(gpus)
        self.parts = only(gpus, "parentUUID")

    def one(self, *configs: object, driver: str = DRIVER_NAME) -> Object:
        return with_configs(claim(self.name, selectors=self.whole), *configs, driver=driver)

    def mig(self) -> Object:
        return claim(self.name, device_class=MIG_CLASS, selectors=self.parts)

    def each(self, *made: Object, is_hurried: bool = False) -> Odd:
        names = [f"{self.name}-{number}" for number in range(len(made))]
        pairs = zip(made, names, strict=True)
        claims = tuple(body | {"metadata": {"name": name}} for body, name in pairs)
        return Odd(claims, tuple(pod_of(name, name) for name in names), is_hurried)


def _unknown_fields(make: _Maker) -> Odd:
    known = gpu_config(strategy="MPS", mpsConfig={"defaultActiveThreadPercentag": 50})
    return make.each(make.one(known), make.one(known | {"share": {}, "": 1}), make.one({}))


def _huge_configs(make: _Maker) -> Odd:
    deep: object = 1
    for _ in range(DEEP):
        deep = [deep]
    many = {f"k{number}": number for number in range(700)}
    long = "x" * (_MOST - 200)
    configs = ({"sharing": deep}, {"sharing": many}, {"kind": long}, {"sharing": long * 2})
    return make.each(*(make.one(gpu_config() | config) for config in configs))


def _other_drivers_configs(make: _Maker) -> Odd:
    text = "".join(map(chr, range(1, 128))) + "<script>&\u2028\u202e\ufeff\U0001f4a9\u0000"
    config = {text: text, "<": [None, 1e308, -0.0, 2**63, text]}
    mine = gpu_config(strategy="MPS", mpsConfig={"defaultActiveThreadPercentage": 10})
    other = "other.example.com"
    both = with_configs(make.one(mine), config, config, driver=other)
    return make.each(make.one(config, driver=other), both)


def _wrong_kinds(make: _Maker) -> Odd:
    mig = {"apiVersion": _VERSION, "kind": "MigDeviceConfig", "sharing": {"strategy": "MPS"}}
    slicing = gpu_config(strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"})
    other = {"apiVersion": "v1", "kind": "Pod"}
    return make.each(make.one(mig), with_configs(make.mig(), slicing), make.one(other))


def _near_miss_names(make: _Maker) -> Odd:
    config = gpu_config(strategy="MPS")
    names = ("gpu.nvidia.co", "gpu.nvidia.com.evil.example", "gpu-nvidia.com", "GPU.nvidia.com")
    drivers = [make.one(config, driver=name) for name in names]
    classes = [claim("", device_class=f"{name}", selectors=make.whole) for name in names[:2]]
    return make.each(*drivers, *classes)


def _many_requests(make: _Maker) -> Odd:
    exactly = make.one()["spec"]["devices"]["requests"][0]["exactly"]
    sizes = (2, 32, 2000)
    wide = [[{"name": f"r{index}", "exactly": exactly} for index in range(size)] for size in sizes]
    made = [make.one() | {"spec": {"devices": {"requests": requests}}} for requests in wide]
    return make.each(*made, claim("", selectors=make.whole, count=10**9))


def _limits_above_the_card(make: _Maker) -> Odd:
    limits: tuple[Object, ...] = (
        {"defaultPinnedDeviceMemoryLimit": "100Ti"},
        {"defaultPinnedDeviceMemoryLimit": "1m"},
        {"defaultActiveThreadPercentage": 1000},
        {"defaultPerDevicePinnedMemoryLimit": {"31": "9E", "GPU-0": "1Gi"}},
    )
    return make.each(*(make.one(gpu_config(strategy="MPS", mpsConfig=limit)) for limit in limits))


def _deleted_while_preparing(make: _Maker) -> Odd:
    config = gpu_config(strategy="MPS")
    return make.each(*(make.one(config) for _ in range(2)), make.mig(), is_hurried=True)


def _squatted_names(make: _Maker) -> Odd:
    """Named as the driver's own objects and files are, and labelled as its pods."""
    names = ("dra-driver", "gpu.nvidia.com", "shared", "members", "desired", "record.json")
    labels = {
        "app.kubernetes.io/name": "dra-driver",
        "app.kubernetes.io/component": make.chance.choice(("kubelet-plugin", "mps-supervisor")),
    }
    claims = tuple(make.one() | {"metadata": {"name": name}} for name in names)
    return Odd(claims, tuple(pod_of(name, name, labels=labels) for name in names))


ACTS: Mapping[str, Callable[[_Maker], Odd]] = {
    "unknown-fields": _unknown_fields,
    "huge-configs": _huge_configs,
    "other-drivers-configs": _other_drivers_configs,
    "wrong-kinds": _wrong_kinds,
    "near-miss-names": _near_miss_names,
    "many-requests": _many_requests,
    "limits-above-the-card": _limits_above_the_card,
    "deleted-while-preparing": _deleted_while_preparing,
    "squatted-names": _squatted_names,
}
"""What each act makes, by its name."""


def odd(act: str, chance: random.Random, gpus: Sequence[str]) -> Odd:
    """Return what an act makes; its claims ask for nothing but these GPUs, by UUID."""
    return ACTS[act](_Maker(chance, gpus))
