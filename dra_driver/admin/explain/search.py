"""Which devices of a node claims would get: the scheduler's search, step by step.

Devices are tried in their order, and the first solution is taken; of alternatives the first that
leads to one. If the scheduler cannot decide something (a selector that fails, a class that does
not exist), the search ends, for the pod on every node: a GivenUpError. So an error counts only if
the scheduler would come across it, and checks are made in its order. Pure; gives up after a number
of steps with an UndecidedError. Unknown CEL is a NotUnderstoodError.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from dra_driver.admin.api.nodes import Node, Taint
from dra_driver.admin.api.slices import CounterId, Device, DeviceId
from dra_driver.admin.cel.selector import Selector
from dra_driver.admin.cel.values import EvaluationError, Semver
from dra_driver.admin.explain.allocated import AllocatedState
from dra_driver.admin.explain.amounts import NotCountableError, consumed, shortage
from dra_driver.admin.explain.pools import Pool
from dra_driver.admin.explain.requests import (
    ALL,
    EXACT,
    MOST_DEVICES,
    Claim,
    Constraint,
    DeviceRequest,
)

_MOST_STEPS = 100_000
"""How many devices are tried, which takes seconds; the scheduler gives up after ten."""

Classes = Mapping[str, tuple[str, ...]]
"""The selectors of each DeviceClass."""


class GivenUpError(Exception):
    """The scheduler gives up on the pod, on all nodes.

    `where` is the device and `selector` the selector that fails, if one does.
    """

    def __init__(self, cause: str, *, where: str = "", selector: str = "") -> None:
        super().__init__(cause)
        self.where = where
        self.selector = selector


class UndecidedError(Exception):
    """The search took too long."""


class _TooManyError(Exception):
    """More devices than a claim can have, so an alternative with fewer must be tried."""


class Pick(Struct, frozen=True, kw_only=True):
    """A device that a request would get."""

    claim: str
    request: str
    label: str
    device: DeviceId


class Scene(Struct, frozen=True, kw_only=True):
    """The input of a search."""

    node: Node
    pools: Sequence[Pool]
    classes: Classes
    allocated: AllocatedState
    selectors: "SelectorCache"


class SelectorCache:
    """Parsed selectors, and whether they select a device."""

    def __init__(self) -> None:
        self._selectors: dict[str, Selector] = {}
        self._answers: dict[tuple[str, DeviceId], bool | EvaluationError] = {}

    def selector(self, text: str) -> Selector:
        """Return a selector, parsed once."""
        selector = self._selectors.get(text)
        if selector is None:
            selector = self._selectors[text] = Selector.of(text)
        return selector

    def hold(self, text: str, device: Device) -> bool:
        """Return whether a selector selects a device. Raises what `Selector.selects` raises."""
        key = (text, device.id)
        answer = self._answers.get(key)
        if answer is None:
            try:
                answer = self.selector(text).selects(device.subject)
            except EvaluationError as error:
                answer = error
            self._answers[key] = answer
        if isinstance(answer, EvaluationError):
            raise answer
        return answer


def picks(scene: Scene, claims: Sequence[Claim]) -> list[Pick] | None:
    """Return the devices that claims would get on a node; None if they do not fit."""
    return _Search(scene, claims).run()


class _Bound(Struct):
    """A constraint, and its attribute's values of the devices picked so far."""

    constraint: Constraint
    values: list[object] = []

    def add(self, request: DeviceRequest, device: Device) -> bool:
        if not self.constraint.concerns(request):
            return True
        value = device.attribute(self.constraint.attribute)
        if value is None:
            return False
        if self.constraint.distinct:
            fits = all(not same(value, other) for other in self.values)
        else:
            fits = not self.values or same(value, self.values[0])
        if fits and self.values and isinstance(value, list):
            return False  # no constraint compares lists yet
        if fits:
            self.values.append(value)
        return fits

    def remove(self, request: DeviceRequest) -> None:
        if self.constraint.concerns(request):
            self.values.pop()


def same(left: object, right: object) -> bool:
    """Return whether two attributes have the same value and type."""
    if isinstance(left, Semver) and isinstance(right, Semver):
        return left.text == right.text
    return type(left) is type(right) and left == right


class _Prepared(Struct, frozen=True, kw_only=True):
    """A request, and how many devices it needs; `devices` are set only if it asks for all."""

    request: DeviceRequest
    count: int
    devices: tuple[tuple[Pool, Device], ...] = ()


class _Search:
    """One search. Picks that lead nowhere are undone."""

    def __init__(self, scene: Scene, claims: Sequence[Claim]) -> None:
        self._scene = scene
        self._claims = claims
        self._prepared: dict[tuple[int, int], tuple[_Prepared, ...]] = {}
        self._bounds = [
            [_Bound(constraint) for constraint in claim.constraints] for claim in claims
        ]
        self._picking: dict[DeviceId, set[int]] = {}
        self._amounts: dict[DeviceId, list[dict[str, int]]] = {}
        self._counters: dict[int, dict[CounterId, int]] = {}
        self._left: dict[int, dict[CounterId, int]] = {}
        self._found: list[list[Pick]] = [[] for _ in claims]
        self._steps = 0
        self._candidates = [
            (pool, device) for pool in scene.pools if pool.fault is None for device in pool.devices
        ]

    def run(self) -> list[Pick] | None:
        try:
            self._prepare()
            try:
                done = self._request(0, 0)
            except _TooManyError:
                done = False
        except RecursionError:
            raise UndecidedError from None
        return [pick for own in self._found for pick in own] if done else None

    def _prepare(self) -> None:
        for number, claim in enumerate(self._claims):
            total = 0
            for place, entry in enumerate(claim.requests):
                prepared = tuple(
                    self._prepared_request(claim, request) for request in entry.alternatives
                )
                self._prepared[number, place] = prepared
                least = min(each.count for each in prepared)
                if least > MOST_DEVICES - total:
                    raise GivenUpError(
                        f"claim {claim.name} asks for more than {MOST_DEVICES} devices, the most "
                        "that a claim can have"
                    )
                total += least

    def _prepared_request(self, claim: Claim, request: DeviceRequest) -> _Prepared:
        if request.device_class not in self._scene.classes:
            raise GivenUpError(f"the DeviceClass {request.device_class} does not exist")
        if request.mode == EXACT:
            return _Prepared(request=request, count=request.count)
        if request.mode != ALL:
            raise GivenUpError(f"there is no allocation mode {request.mode}")
        devices: list[tuple[Pool, Device]] = []
        for pool in self._scene.pools:
            if pool.fault is not None:
                raise GivenUpError(
                    f"request {request.name} asks for all devices, and the pool {pool.name} of "
                    f"{pool.driver} is {pool.fault}: {pool.problem}"
                )
            for device in pool.devices:
                if self._selectable(claim, request, device) and self._enough(request, device):
                    devices.append((pool, device))  # noqa: PERF401 (two conditions that may raise)
        return _Prepared(request=request, count=len(devices), devices=tuple(devices))

    def _enough(self, request: DeviceRequest, device: Device, *taken: Mapping[str, int]) -> bool:
        try:
            return shortage(device.capacities, request.capacities, *taken) is None
        except NotCountableError as error:
            raise GivenUpError(f"request {request.name}: {error}") from error

    def _selectable(self, claim: Claim, request: DeviceRequest, device: Device) -> bool:
        for text in self._scene.classes[request.device_class]:
            if not self._holds(text, device, f"DeviceClass {request.device_class}"):
                return False
        for text in request.selectors:
            if not self._holds(text, device, f"request {request.name} of claim {claim.name}"):
                return False
        return device.place is None or device.place.includes(self._scene.node)

    def _holds(self, text: str, device: Device, whose: str) -> bool:
        try:
            return self._scene.selectors.hold(text, device)
        except EvaluationError as error:
            raise GivenUpError(
                f"a selector of {whose} fails: {error}", where=str(device.id), selector=text
            ) from error

    def _request(self, number: int, place: int) -> bool:
        """Pick devices for a request and all after it."""
        if number == len(self._claims):
            return True
        if place == len(self._claims[number].requests):
            try:
                return self._request(number + 1, 0)
            except _TooManyError:
                return False
        prepared = self._prepared[number, place]
        if not self._claims[number].requests[place].has_alternatives:
            return self._device(number, place, prepared[0], 0, 0)
        too_many = True
        for chosen in prepared:
            try:
                if self._device(number, place, chosen, 0, 0):
                    return True
            except _TooManyError:
                continue
            too_many = False
        if too_many:
            raise _TooManyError
        return False

    def _device(self, number: int, place: int, chosen: _Prepared, nth: int, start: int) -> bool:
        """Pick the nth device of a request, from candidate `start` on, and all after it."""
        if chosen.request.mode == ALL and not chosen.devices:
            return False
        if nth >= chosen.count:
            return self._request(number, place + 1)
        if chosen.count - nth > MOST_DEVICES - len(self._found[number]):
            raise _TooManyError
        if chosen.request.mode == ALL:
            pool, device = chosen.devices[nth]
            return self._try(number, chosen.request, pool, device, must=True) and self._go_on(
                number, place, chosen, (nth, 0), (pool, device)
            )
        claim, request = self._claims[number], chosen.request
        for at in range(start, len(self._candidates)):
            pool, device = self._candidates[at]
            if self._in_use(number, request, device) or not self._selectable(
                claim, request, device
            ):
                continue
            if not self._enough(request, device, *self._consumption(device.id)):
                continue
            if self._try(number, request, pool, device) and self._go_on(
                number, place, chosen, (nth, at + 1), (pool, device)
            ):
                return True
        return False

    def _go_on(
        self,
        number: int,
        place: int,
        chosen: _Prepared,
        where: tuple[int, int],
        picked: tuple[Pool, Device],
    ) -> bool:
        """Pick the next device; undo this pick if that leads nowhere."""
        nth, start = where
        try:
            done = self._device(number, place, chosen, nth + 1, start)
        except _TooManyError:
            self._undo(number, chosen.request, *picked)
            raise
        if not done:
            self._undo(number, chosen.request, *picked)
        return done

    def _in_use(self, number: int, request: DeviceRequest, device: Device) -> bool:
        picking = self._picking.get(device.id, set())
        if request.admin:
            return number in picking
        return bool(picking) or device.id in self._scene.allocated.whole

    def _consumption(self, device: DeviceId) -> list[Mapping[str, int]]:
        return [self._scene.allocated.consumed(device), *self._amounts.get(device, [])]

    def _try(
        self, number: int, request: DeviceRequest, pool: Pool, device: Device, *, must: bool = False
    ) -> bool:
        """Pick a device, if that is possible."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise UndecidedError
        if self._in_use(number, request, device):
            return False
        counts = bool(device.consumes) and not (
            device.shared
            and (device.id in self._scene.allocated.parts or device.id in self._amounts)
        )
        if counts and not self._count(pool, device):
            return False
        bounds: list[_Bound] = []
        fits = not untolerated(device, request)
        for bound in self._bounds[number] if fits else ():
            fits = bound.add(request, device)
            if not fits:
                break
            bounds.append(bound)
        broken = not fits and must and not untolerated(device, request)
        if fits and self._enough(request, device, *self._consumption(device.id)):
            self._keep(number, request, device)
            return True
        for bound in bounds:
            bound.remove(request)
        if counts:
            self._uncount(pool, device)
        if broken:
            raise GivenUpError(
                f"request {request.name} asks for all devices, and a constraint of the claim does "
                "not hold for them",
                where=str(device.id),
            )
        return False

    def _keep(self, number: int, request: DeviceRequest, device: Device) -> None:
        if device.shared:
            amounts = consumed(device.capacities, request.capacities)
            self._amounts.setdefault(device.id, []).append(amounts)
        else:
            self._picking.setdefault(device.id, set()).add(number)
        name = self._claims[number].name
        self._found[number].append(
            Pick(claim=name, request=request.name, label=request.label, device=device.id)
        )

    def _undo(self, number: int, request: DeviceRequest, pool: Pool, device: Device) -> None:
        self._found[number].pop()
        was_first = True
        if device.shared:
            self._amounts[device.id].pop()
            was_first = not self._amounts[device.id]
            if was_first:
                del self._amounts[device.id]
        else:
            self._picking[device.id].discard(number)
        for bound in self._bounds[number]:
            bound.remove(request)
        counted = not (device.shared and device.id in self._scene.allocated.parts)
        if device.consumes and was_first and counted:
            self._uncount(pool, device)

    def _count(self, pool: Pool, device: Device) -> bool:
        """Take a device's counters, if its pool has enough of all of them."""
        used = self._counters.setdefault(id(pool), {})
        for counter, amount in device.consumes.items():
            used[counter] = used.get(counter, 0) + amount
        there = self._left.get(id(pool))
        if there is None:
            there = self._left[id(pool)] = counters_left(pool, self._scene.allocated)
        if all(amount >= used.get(counter, 0) for counter, amount in there.items()):
            return True
        self._uncount(pool, device)
        return False

    def _uncount(self, pool: Pool, device: Device) -> None:
        used = self._counters[id(pool)]
        for counter, amount in device.consumes.items():
            used[counter] -= amount


def counters_left(pool: Pool, allocated: AllocatedState) -> dict[CounterId, int]:
    """Return what is left of a pool's counters; negative if too much was allocated."""
    left = dict(pool.counters)
    for device in (*pool.devices, *pool.others):
        if allocated.has(device.id):
            for counter, amount in device.consumes.items():
                left[counter] -= amount
    return left


def untolerated(device: Device, request: DeviceRequest) -> Taint | None:
    """Return the first taint of a device that a request does not tolerate."""
    for taint in device.taints:
        if taint.blocks and not any(
            toleration.tolerates(taint) for toleration in request.tolerations
        ):
            return taint
    return None
