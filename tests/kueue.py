"""What Kueue charges a claim's request for, where a quota is by a counter of devices.

In: ResourceSlices as the API server has them, a request, and the source of a quota as Kueue's
config has it. Out: the charge. Rule: Kueue's KEP-2941 ("Partitionable Devices"), as Kueue 0.19 and
newer do it (`deviceClassMappings[].sources[].counter`). Of pools whose slices of the newest
generation are all there, devices that the source's selector, the class and the request select are
matched; the largest `consumesCounters` of the counter among them is charged for each device asked
for. Where none of them consumes it, or too few match, nothing is admitted. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from dra_driver.admin.api.slices import CounterId, Device, read_slice
from dra_driver.admin.cel.selector import Selector

Object = Mapping[str, Any]

_NANO = 10**9


class InadmissibleError(Exception):
    """Why Kueue leaves the workload waiting."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The counter that a quota is by. The selector is Kueue's `deviceSelector`."""

    counter: str = "memory"
    driver: str = "gpu.nvidia.com"
    selector: str = "device.driver == 'gpu.nvidia.com'"


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request of a claim: the selectors of its DeviceClass and its own, and how many."""

    selectors: Sequence[str] = ()
    count: int = 1


def charge(slices: Sequence[Object], request: Request, source: Source) -> int:
    """Return what a request is charged, in units of the counter.

    Raises:
        InadmissibleError: the workload is not admitted.
    """
    selectors = [Selector.of(text) for text in (source.selector, *request.selectors)]
    matched = [
        device
        for device in _devices(slices, source.driver)
        if all(selector.selects(device.subject) for selector in selectors)
    ]
    if len(matched) < request.count:
        raise InadmissibleError(
            f"insufficient matching devices: {len(matched)} match, {request.count} requested"
        )
    consumed = [
        amount
        for device in matched
        for counter, amount in device.consumes.items()
        if counter.counter == source.counter
    ]
    if not consumed:
        raise InadmissibleError(
            f"matched devices have no consumesCounters entry for counter {source.counter}"
        )
    return max(consumed) // _NANO * request.count


def counter_total(slices: Sequence[Object], counter: str) -> int:
    """Return how much of a counter there is in all counter sets: what a quota is cut from."""
    sets = (
        (CounterId(name, found), amount)
        for one in slices
        for name, amounts in read_slice(one).counters
        for found, amount in amounts.items()
    )
    return sum(amount for one, amount in sets if one.counter == counter) // _NANO


def _devices(slices: Sequence[Object], driver: str) -> Iterator[Device]:
    def pool(one: Object) -> str:
        return str(one["spec"]["pool"]["name"])

    mine = sorted((one for one in slices if one["spec"]["driver"] == driver), key=pool)
    for _, found in groupby(mine, key=pool):
        of_pool = list(found)
        newest = max(one["spec"]["pool"]["generation"] for one in of_pool)
        current = [one for one in of_pool if one["spec"]["pool"]["generation"] == newest]
        if len(current) == current[0]["spec"]["pool"]["resourceSliceCount"]:
            for one in current:
                yield from read_slice(one).devices
