"""The first reason why a request does not get a device.

The order is the one in which people ask: does the device match, is it taken, is enough of it left,
does the request tolerate its taints. (The scheduler checks in another order, with the same result.)
Pure.
"""

from collections.abc import Iterator
from enum import StrEnum

from msgspec import Struct

from dra_driver.admin.api.allocations import Allocation
from dra_driver.admin.api.nodes import Taint
from dra_driver.admin.api.slices import CounterId, Device
from dra_driver.admin.cel.selector import Fault
from dra_driver.admin.cel.values import EvaluationError, NotUnderstoodError
from dra_driver.admin.explain.allocated import named
from dra_driver.admin.explain.amounts import NotCountableError, Shortage, shortage
from dra_driver.admin.explain.pools import Pool
from dra_driver.admin.explain.requests import DeviceRequest
from dra_driver.admin.explain.search import Scene, counters_left, untolerated
from dra_driver.devices.names import SINGLE_SHARE
from dra_driver.host import words
from resource_nvidia_com.quantity import Format, Quantity

_NAMED = 3
"""How many devices are named; the others are counted."""


class Kind(StrEnum):
    """The kinds of reasons, in the order in which they are checked."""

    CLASS = "class"
    CLASS_FAILS = "class fails"
    SELECTOR = "selector"
    FAILS = "selector fails"
    UNKNOWN = "selector not understood"
    NODE = "node"
    ONE_SHARE = "one share each"
    TAKEN = "taken"
    CAPACITY = "capacity"
    CONSUMED = "capacity consumed"
    COUNTERS = "counters"
    TAINT = "taint"


UNSELECTED = frozenset(
    {Kind.CLASS, Kind.CLASS_FAILS, Kind.SELECTOR, Kind.FAILS, Kind.UNKNOWN, Kind.NODE}
)
"""The device does not match the request."""


class Reason(Struct, frozen=True, kw_only=True):
    """Why a request does not get a device.

    Attributes:
        text: the reason in words that follow the name of a device.
        faults: what is false in the selector for this device.
        holders: the claims that are in the way.
        taint: the taint that is in the way, if one is.
    """

    kind: Kind
    text: str
    selector: str = ""
    faults: tuple[Fault, ...] = ()
    holders: tuple[Allocation, ...] = ()
    taint: Taint | None = None


def first_reason(scene: Scene, pool: Pool, request: DeviceRequest, device: Device) -> Reason | None:
    """Return why a request does not get a device; None if nothing is in the way."""
    return next(_reasons(scene, pool, request, device), None)


def _reasons(scene: Scene, pool: Pool, request: DeviceRequest, device: Device) -> Iterator[Reason]:
    for text in scene.classes.get(request.device_class, ()):
        yield from _of_selector(
            scene, text, device, Kind.CLASS, f"DeviceClass {request.device_class}"
        )
    for text in request.selectors:
        yield from _of_selector(scene, text, device, Kind.SELECTOR, "the request's selector")
    if device.place is not None and not device.place.includes(scene.node):
        yield Reason(kind=Kind.NODE, text="is for other nodes")
    if request.takes_several and device.id.share == SINGLE_SHARE:
        text = "is a share, and the node's share config allows a request only one"
        yield Reason(kind=Kind.ONE_SHARE, text=text)
    holders = scene.allocated.whole.get(device.id, ())
    if holders and not request.admin:
        yield Reason(kind=Kind.TAKEN, text=f"is taken by {named(holders)}", holders=holders)
    yield from _of_capacity(scene, request, device)
    yield from _of_counters(scene, pool, device)
    if taint := untolerated(device, request):
        by = f" of DeviceTaintRule {taint.rule}" if taint.rule else ""
        text = f"has the taint {taint}{by}, which the request does not tolerate"
        yield Reason(kind=Kind.TAINT, text=text, taint=taint)


def _of_selector(
    scene: Scene, text: str, device: Device, kind: Kind, whose: str
) -> Iterator[Reason]:
    try:
        if scene.selectors.hold(text, device):
            return
    except EvaluationError as error:
        faults = scene.selectors.selector(text).faults(device.subject)
        words = f"makes {whose} fail: {error}"
        fails = Kind.CLASS_FAILS if kind is Kind.CLASS else Kind.FAILS
        yield Reason(kind=fails, text=words, selector=text, faults=faults)
        return
    except NotUnderstoodError as error:
        words = f"may or may not be selected: {whose} has {error}, which is not understood here"
        yield Reason(kind=Kind.UNKNOWN, text=words, selector=text)
        return
    faults = scene.selectors.selector(text).faults(device.subject)
    words = "is not selected by " + whose
    yield Reason(kind=kind, text=words, selector=text, faults=faults)


def _of_capacity(scene: Scene, request: DeviceRequest, device: Device) -> Iterator[Reason]:
    try:
        lack = shortage(device.capacities, request.capacities)
        if lack is not None:
            yield Reason(kind=Kind.CAPACITY, text=_too_small(lack))
            return
        lack = shortage(device.capacities, request.capacities, scene.allocated.consumed(device.id))
    except NotCountableError as error:
        yield Reason(kind=Kind.CAPACITY, text=f"cannot be compared: {error}")
        return
    if lack is None:
        return
    holders = scene.allocated.parts.get(device.id, ())
    total, wanted = lack.total or 0, lack.wanted
    text = (
        f"has {amount(total)} of {lack.name}, of which {amount(max(0, total - lack.taken))} is "
        f"left and {amount(wanted)} is needed: the rest is taken by {named(holders)}"
    )
    yield Reason(kind=Kind.CONSUMED, text=text, holders=holders)


def _too_small(lack: Shortage) -> str:
    if lack.total is None:
        return f"has no capacity {lack.name}, of which the request asks for {amount(lack.wanted)}"
    if lack.refused and lack.wanted <= lack.total:
        return f"does not allow the amount {amount(lack.wanted)} of {lack.name}"
    return f"has {amount(lack.total)} of {lack.name}, and {amount(lack.wanted)} is needed"


def _of_counters(scene: Scene, pool: Pool, device: Device) -> Iterator[Reason]:
    if not device.consumes or (device.shared and device.id in scene.allocated.parts):
        return
    left = counters_left(pool, scene.allocated)
    for counter, amount_left in left.items():
        needed = device.consumes.get(counter, 0)
        if amount_left >= needed:
            continue
        used = _users(scene, pool, counter)
        holders = tuple(holder for those in used.values() for holder in those)
        text = f"shares hardware with {words.named(used, _NAMED)}, in use by {named(holders)}"
        if not used:
            text = (
                f"needs {amount(needed)} of counter {counter.counter} in {counter.counter_set}, "
                f"and {amount(max(0, amount_left))} is left"
            )
        elif len(used) == 1 and device.id.device.startswith(f"{(gpu := next(iter(used)))}-"):
            how = "in parts" if holders[0].share_id else "as a whole"
            text = f"is part of {gpu}, which is used {how} by {named(holders)}"
        yield Reason(kind=Kind.COUNTERS, text=text, holders=holders)


def _users(scene: Scene, pool: Pool, counter: CounterId) -> dict[str, tuple[Allocation, ...]]:
    """Return the allocations of devices that take from a counter, by the devices' names."""
    return {
        device.id.device: holders
        for device in (*pool.devices, *pool.others)
        if counter in device.consumes and (holders := scene.allocated.holders(device.id))
    }


def amount(nanos: int) -> str:
    """Return an amount with its suffix, such as 10Gi."""
    binary = nanos % 2**20 == 0 and nanos >= 2**20 * 10**9 and (nanos // 10**9) % 2**20 == 0
    return str(Quantity(nanos, Format.BINARY_SI if binary else Format.DECIMAL_SI))
