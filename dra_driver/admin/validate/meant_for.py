"""Whether the configs of a claim are for devices that its requests can get. Pure.

In: the requests and configs of a claim as written. Out: what certainly has no effect, in words for
its author. Of DeviceClasses, only those that come with the driver are known, by their names; for
any other, only Prepare knows what a request got. If a claim has configs of several kinds, one can
hide another, and only Prepare knows which.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from types import MappingProxyType

from msgspec import Struct

from dra_driver.fields import text

CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "GpuConfig": "gpu.nvidia.com",
        "MigDeviceConfig": "mig.nvidia.com",
        "VfioDeviceConfig": "vfio.gpu.nvidia.com",
    }
)
"""The DeviceClass whose devices configs of a kind are for, by the kind."""


class WrittenConfig(Struct, frozen=True, kw_only=True):
    """A config of this driver: its kind, and the requests it names; none means all."""

    kind: str
    requests: tuple[str, ...]


def in_vain(requests: object, configs: Sequence[WrittenConfig]) -> Iterator[tuple[int, str]]:
    """Yield (index, why) of each config that has no effect; `requests` may have any shape."""
    kinds = {config.kind for config in configs}
    asked = requests if isinstance(requests, list) else []
    others = [kind for kind in CLASSES if kind not in kinds]
    for (index, config), other in product(enumerate(configs), others):
        if config.kind not in CLASSES:
            continue
        names = [text(request, "name") for request in asked if _asks_for(request, CLASSES[other])]
        wrong = [name for name in names if name in config.requests]
        if not config.requests and names and len(names) == len(asked):
            wrong = names
        if wrong:
            asks = f"request {', '.join(wrong)}, which asks for DeviceClass {CLASSES[other]}"
            yield index, f"a {config.kind} has no effect on the devices of {asks}: write {other}"


def overridden(requests: object, configs: Sequence[WrittenConfig]) -> Iterator[tuple[int, str]]:
    """Yield (index, why) of each config that later ones of its kind replace everywhere."""
    every = {text(request, "name") for request in requests} if isinstance(requests, list) else set()
    for index, config in enumerate(configs):
        later = {
            name
            for other in configs[index + 1 :]
            if other.kind == config.kind
            for name in other.requests or every
        }
        covered = set(config.requests) or every
        if covered and covered <= later:
            why = f"a later {config.kind} of this claim holds for the same requests, in place of"
            yield index, f"{why} this one: write one of them"


def _asks_for(request: object, class_name: str) -> bool:
    """Tell whether a request certainly gets devices of a class, and may change them."""
    if not isinstance(request, Mapping):
        return False
    exactly, alternatives = request.get("exactly"), request.get("firstAvailable")
    if isinstance(exactly, Mapping):
        return text(exactly, "deviceClassName") == class_name and not exactly.get("adminAccess")
    return isinstance(alternatives, list) and _all_of(alternatives, class_name)


def _all_of(alternatives: Iterable[object], class_name: str) -> bool:
    names = [text(alternative, "deviceClassName") for alternative in alternatives]
    return bool(names) and set(names) == {class_name}
