"""What a cluster offers on one GPU: MIG profiles, shares, memory. Pure.

In: ResourceSlices of this driver, and optionally a node's name. Out: an `Offer` of the
best-equipped GPU, because a run asks for devices by their properties and the scheduler chooses the
GPU.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from msgspec import Struct

from dra_driver.admin.api.slices import Device, readable_slices
from dra_driver.bench.strategies import Strategy
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.kube.fields import Object, text


class Offer(Struct, frozen=True, kw_only=True):
    """The offer.

    Attributes:
        profiles: MIG profiles, and how many of each fit on one GPU.
        shares: resource names of shares, and how many one GPU is divided into.
    """

    gpus: int = 0
    profiles: Mapping[str, int] = {}
    shares: Mapping[str, int] = {}

    def lack(self, strategy: Strategy) -> str:
        """Return which MIG devices of a strategy are missing; empty if none."""
        for profile, wanted in Counter(strategy.profiles).items():
            fit = self.profiles.get(profile, 0)
            if not fit:
                there = ", ".join(sorted(self.profiles)) or "none"
                return f"there is no MIG device {profile}; there are: {there}"
            if wanted > fit:
                return f"one GPU has room for {fit} of {profile}, but {wanted} are needed"
        return ""


def offered(slices: Iterable[Object], node: str = "") -> Offer:
    """Return what slices offer, of all nodes or of one."""
    gpus = 0
    places: dict[str, Counter[str]] = defaultdict(Counter)
    shares: dict[str, int] = {}
    for device in _devices(slices, node):
        of = partial(_attribute, device)
        if isinstance(replicas := of("replicas"), int):
            shares[str(of("resourceName") or "")] = replicas
        elif of("type") == "gpu":
            gpus += 1
        elif of("type") == "mig":
            places[str(of("parentUUID"))][str(of("profile"))] += 1
    profiles: dict[str, int] = {}
    for of_gpu in places.values():
        for name, fit in of_gpu.items():
            profiles[name] = max(fit, profiles.get(name, 0))
    return Offer(gpus=gpus, profiles=profiles, shares=shares)


def _devices(slices: Iterable[Object], node: str) -> Iterator[Device]:
    ours = (
        each
        for each in slices
        if text(each, "spec", "driver") == DRIVER_NAME
        and node in ("", text(each, "spec", "nodeName"))
    )
    for own in readable_slices(ours):
        yield from own.devices


def _attribute(device: Device, name: str) -> object:
    return device.attribute(f"{DRIVER_NAME}/{name}")
