"""Carries out the steps of claims: do, ensure, wait, undo.

In: config groups and the devices they are for, or the steps of a record. Out: the steps that share
the devices, what containers get for them, and hardware and daemons as the steps say, or as before.

Steps have one order: those that make devices exist come before those that share them. Steps about
the same GPU are done one after the other and undone in reverse. Steps about different GPUs run in
parallel, so that eight GPUs take no longer than one. Callers hold the GPUs' locks, except in `wait`
and `end`, so that no lock is held while a daemon is waited for.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar, assert_never

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.cdi.model import Edits
from dra_driver.claims.model.record import ClaimRecord, ClaimStep, MigStep
from dra_driver.claims.prepare.mig import MigDevices
from dra_driver.devices.device import Base, Device, DeviceKey, Mig, Vfio, place_of
from dra_driver.devices.model import GpuUuid
from dra_driver.errors import DriverError, try_all
from dra_driver.host.turns import waiting
from dra_driver.sharing.base import EXCLUSIVE, Doer, Group, Planner, Unit, strategy_name
from dra_driver.sharing.steps import (
    JoinDomain,
    NvidiaMpsDaemon,
    PassThrough,
    SharingStep,
    TimeSlice,
    UseShares,
)

NO_WAIT = -math.inf
"""A deadline that has always passed, so that nothing is waited for."""

T = TypeVar("T")
R = TypeVar("R")

Failures = list[tuple[ClaimStep, DriverError]]


class Sharing(Struct, frozen=True, kw_only=True):
    """What shares devices on this node.

    `planners` are the strategies by the names that configs use; shares have the name
    UseShares.name. Each of the others carries out steps of one kind.
    """

    planners: Mapping[str, Planner]
    time_slices: Doer[TimeSlice]
    domains: Doer[JoinDomain]
    nvidia_mps: Doer[NvidiaMpsDaemon]
    shares: Doer[UseShares]
    passthrough: Doer[PassThrough]

    def doer(self, step: SharingStep) -> Doer[Any]:
        """Return the object that carries out a step."""
        match step:
            case TimeSlice():
                return self.time_slices
            case JoinDomain():
                return self.domains
            case NvidiaMpsDaemon():
                return self.nvidia_mps
            case UseShares():
                return self.shares
            case PassThrough():
                return self.passthrough
            case _:
                assert_never(step)


class Steps:
    """Carries out steps on this node."""

    def __init__(self, mig: MigDevices, sharing: Sharing) -> None:
        self._mig = mig
        self._sharing = sharing

    def plan(
        self,
        record: ClaimRecord,
        groups: Sequence[Group],
        owed: tuple[SharingStep, ...],
        deadline: float,
    ) -> tuple[SharingStep, ...]:
        """Return the steps that share a record's devices, by the configs that apply to them.

        Of devices that are still to be made, steps name the places. `owed` are steps of former
        claims on these devices that could not be undone yet. Raises ConfigError if a config asks
        for something that these devices or this driver cannot do, DeviceError or TransientError if
        a GPU does not say how it is set.
        """
        there = {(it.place, it.share): it for it in record.held}
        named: dict[str, list[Group]] = {}
        for group in groups:
            parts: dict[str, list[Unit]] = {}
            for unit in group.units:
                bound = replace(unit, device=there[unit.device.place, unit.device.share])
                parts.setdefault(_strategy(bound.device, group), []).append(bound)
            for name, units in parts.items():
                named.setdefault(name, []).append(replace(group, units=tuple(units), owed=owed))
        named.pop(EXCLUSIVE, None)
        plans = (self._sharing.planners[name].plan(named[name], deadline) for name in named)
        return tuple(step for plan in plans for step in plan)

    def edits(self, steps: Sequence[ClaimStep]) -> dict[DeviceKey, Edits]:
        """Return the edits that containers get for the steps, by the device that they use."""
        by_key: dict[DeviceKey, Edits] = {}
        for step in sharing_steps(steps):
            for key, edits in self._sharing.doer(step).edits(step).items():
                by_key[key] = by_key.get(key, Edits()) + edits
        return by_key

    def realise(self, record: ClaimRecord, deadline: float) -> ClaimRecord:
        """Carry out a record's steps; return it with the MIG devices that were made.

        Steps that share devices get what was made at their places. Raises as `do` does.
        """
        record = with_made(record, self.do(mig_steps(record.steps), deadline))
        self.do(sharing_steps(record.steps), deadline)
        return record

    def do(self, steps: Sequence[ClaimStep], deadline: float) -> list[Mig]:
        """Carry out steps; return the MIG devices that were made.

        The first DriverError is raised after all other steps have ended.
        """

        def lane(members: Sequence[ClaimStep]) -> list[Mig]:
            made: list[Mig] = []
            for step in members:
                if isinstance(step, MigStep):
                    made += self._mig.do(step)
                else:
                    self._sharing.doer(step).do(step, deadline)
            return made

        return [mig for each in _all_or_error(_lanes(steps), lane) for mig in each]

    def ensure(self, steps: Sequence[ClaimStep]) -> None:
        """Make sure that steps are still in effect. Raises DeviceError or TransientError."""
        try_all(partial(self._sharing.doer(step).ensure, step) for step in sharing_steps(steps))

    def wait(
        self, steps: Sequence[ClaimStep], deadline: float, given_up: Callable[[], bool]
    ) -> None:
        """Wait until containers can start with the steps. Raises DeviceError or TransientError."""
        daemons = [step for step in sharing_steps(steps) if step.lives_by_itself]
        _all_or_error(daemons, lambda step: self._sharing.doer(step).wait(step, deadline, given_up))

    def end(self, steps: Iterable[ClaimStep], deadline: float) -> bool:
        """Undo steps whose effect lives by itself, and wait; tell whether all have ended.

        Needs no GPU's lock, as each MPS domain has a lock of its own; `undo` follows.
        """
        daemons = [step for step in sharing_steps(steps) if step.lives_by_itself]
        return not _failures(daemons, lambda step: self._undo(step, deadline))

    def undo(self, steps: Sequence[ClaimStep], deadline: float) -> Failures:
        """Undo steps in reverse order; return those that could not be undone, with the reasons.

        The end of what lives by itself is not waited for here, as `end` has done that.
        """

        def lane(members: Sequence[ClaimStep]) -> Failures:
            failed: Failures = []
            for step in reversed(members):
                try:
                    self._undo(step, NO_WAIT if step.lives_by_itself else deadline)
                except DriverError as error:
                    failed.append((step, error))
            return failed

        return [left for each in _all_or_error(_lanes(steps), lane) for left in each]

    def claims(self, uuids: Collection[str] | None = None) -> frozenset[str]:
        """Return the UIDs of claims for which something lives by itself, on devices or any."""
        return self._sharing.domains.claims(uuids)

    def sweep(self, uid: str, deadline: float) -> list[tuple[str, DriverError]]:
        """Undo all that exists for a claim without a record; return what could not be undone."""
        sweep = partial(self._sharing.domains.sweep, deadline=deadline)
        return [(JoinDomain.name, error) for _, error in _failures([uid], sweep)]

    def _undo(self, step: ClaimStep, deadline: float) -> None:
        if isinstance(step, MigStep):
            self._mig.undo(step)
        else:
            self._sharing.doer(step).undo(step, deadline)


def with_made(record: ClaimRecord, made: Iterable[Mig]) -> ClaimRecord:
    """Return a record, and the steps in it that share devices, with what was made at places."""
    at: dict[Base, Mig] = {place_of(mig): mig for mig in made}
    if not at:
        return record

    def bound(device: Device) -> Device:
        return replace(device, base=at.get(device.base, device.base))

    return replace(
        record,
        devices=tuple(replace(entry, device=bound(entry.device)) for entry in record.devices),
        steps=tuple(
            step
            if isinstance(step, MigStep)
            else replace(step, devices=tuple(map(bound, step.devices)))
            for step in record.steps
        ),
    )


def mig_steps(steps: Iterable[ClaimStep]) -> list[MigStep]:
    """Return the steps that make devices exist."""
    return [step for step in steps if isinstance(step, MigStep)]


def sharing_steps(steps: Iterable[ClaimStep]) -> list[SharingStep]:
    """Return the steps that share devices."""
    return [step for step in steps if not isinstance(step, MigStep)]


def _lanes(steps: Sequence[ClaimStep]) -> Sequence[Sequence[ClaimStep]]:
    """Group steps by the GPU of their first device, in their order."""
    lanes: dict[GpuUuid, list[ClaimStep]] = {}
    for step in steps:
        lanes.setdefault(step.devices[0].gpu, []).append(step)
    return list(lanes.values())


def _strategy(device: Device, group: Group) -> str:
    """Return by which strategy a device is shared; for shares the node decides, not the claim."""
    if isinstance(device.base, Vfio):
        return PassThrough.name
    return strategy_name(group.config) if device.share is None else UseShares.name


def _all_or_error(values: Sequence[T], call: Callable[[T], R]) -> list[R]:
    """Call for each value on a thread of its own; return the results when all have ended.

    Raises the first DriverError that one of the calls raised.
    """
    results: list[R] = []
    for outcome in _outcomes(values, call):
        if isinstance(outcome, DriverError):
            raise outcome
        results.append(outcome)
    return results


def _failures(values: Sequence[T], call: Callable[[T], object]) -> list[tuple[T, DriverError]]:
    """Call for each value on a thread of its own; return those that failed when all have ended."""
    ends = zip(values, _outcomes(values, call), strict=True)
    return [(value, end) for value, end in ends if isinstance(end, DriverError)]


def _outcomes(values: Sequence[T], call: Callable[[T], R]) -> list[R | DriverError]:
    def outcome(value: T) -> R | DriverError:
        try:
            return call(value)
        except DriverError as error:
            return error

    if len(values) <= 1:
        return [outcome(value) for value in values]
    # Each thread gets this thread's log context, which names the claim.
    contexts = [copy_context() for _ in values]
    with waiting(), ThreadPoolExecutor(len(values), thread_name_prefix="claim-step") as pool:
        return list(pool.map(lambda context, value: context.run(outcome, value), contexts, values))
