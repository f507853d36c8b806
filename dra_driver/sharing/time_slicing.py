"""TimeSlicing: the processes of a claim's containers take turns on each of its GPUs.

In: GPUs under a config with an interval. Out: the GPU's time-slice, set by nvidia-smi, and its
compute mode DEFAULT, set through NVML, because in the other modes a second process is turned away.
Both hold for the GPU, not for a client, and are lost with a reboot. Both are read first and put
back in the end, because they may be an admin's; a time-slice that was read or set a moment ago is
not read again, and where a claim's own could not be put back yet, what stood before that claim
counts. A time-slice that cannot be read is taken for the default. Whether a card lets a time-slice
be set cannot be read: it is asked once, by setting the one that it has. Only whole GPUs have a
time-slice: on MIG devices the strategy is accepted and nothing is done; a plan without GPUs says
so, for `dra-driver status`.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import structlog
from msgspec import Struct

from dra_driver.devices.kinds import GpuPart
from dra_driver.devices.model import Gpu, GpuUuid
from dra_driver.devices.names import gpu_name
from dra_driver.errors import ConfigError, DriverError
from dra_driver.sharing.base import (
    ComputeModes,
    Description,
    DeviceKey,
    Group,
    MigUnit,
    Sharing,
    SharingPlan,
    select_from,
)
from resource_nvidia_com.v1beta1.names import Interval, SharingStrategy

if TYPE_CHECKING:
    from resource_nvidia_com.v1beta1.gpu import GpuConfig

log = structlog.get_logger()

NAME = str(SharingStrategy.TIME_SLICING)

NUMBERS: Mapping[Interval, int] = MappingProxyType(
    {Interval.DEFAULT: 0, Interval.SHORT: 1, Interval.MEDIUM: 2, Interval.LONG: 3}
)
"""The intervals as nvidia-smi numbers them."""

_INTERVALS = MappingProxyType({number: interval for interval, number in NUMBERS.items()})

_DEFAULT_MODE = 0
_PREEMPTION = (6, 0)  # Pascal is the first that can stop a kernel at the end of its slice
_SURE = (7, 0)  # of Pascal some have no time-slice to set, such as the P4


class TimeSlices(Protocol):
    """Reads and sets time-slices by their numbers: sharing/nvidia_smi.py, which reaches NVML."""

    def set_time_slice(self, uuid: str, number: int, deadline: float) -> bool:
        """Set a GPU's time-slice; False if the card has none. Raises DeviceError."""
        ...

    def time_slice(self, uuid: str, deadline: float) -> int | None:
        """Return a GPU's time-slice; None if there is none to be read. Raises DeviceError."""
        ...

    def recent(self, uuid: str) -> int | None:
        """Return the time-slice that a GPU had a moment ago; None if that is not known."""
        ...


class TimeSlicing(Sharing):
    """The strategy TimeSlicing: one plan for each GPU."""

    def __init__(self, time_slices: TimeSlices, modes: ComputeModes) -> None:
        self._time_slices = time_slices
        self._modes = modes
        self._able: set[GpuUuid] = set()

    def plan(self, groups: Sequence[Group], deadline: float) -> tuple[SharingPlan, ...]:
        """Return a plan for each GPU, with the time-slice and compute mode that are found on it.

        For a MIG device it is one that changes nothing.
        """
        wanted = [
            _Wanted(gpu=gpu, interval=_interval(group.config), former=_former(gpu, group.owed))
            for group in groups
            if group.config is not None and group.config.kind == "GpuConfig"
            for gpu in group.gpus
        ]
        for one in wanted:
            if NUMBERS[one.interval] and one.gpu.cuda_compute_capability < _PREEMPTION:
                raise _cannot(
                    _described(one.gpu), one.interval, "its architecture has no preemption"
                )
        found = self._find(wanted, deadline)
        plans = [self._plan(one, slice_) for one, slice_ in zip(wanted, found, strict=True)]
        return (*plans, *(_nothing_to_do(unit) for group in groups for unit in group.migs))

    def apply(self, plan: SharingPlan, deadline: float) -> None:
        """Set time-slice and compute mode."""
        if not plan.gpus:
            return
        (uuid,) = plan.gpus
        interval = _interval_of(plan)
        # A default that cannot be set is a default all the same.
        if (
            interval is not _found_interval(plan)
            and not self._time_slices.set_time_slice(uuid, NUMBERS[interval], deadline)
            and NUMBERS[interval]
        ):
            raise _cannot(str(plan.changes.get("device", uuid)), interval, "Not Supported")
        if _found_mode(plan) != _DEFAULT_MODE:
            self._modes.set_compute_mode(uuid, _DEFAULT_MODE)
        log.info("time-slice set", gpu=uuid, interval=str(interval))

    def undo(self, plan: SharingPlan, deadline: float) -> None:
        """Set the time-slice and the compute mode that were found.

        A mode that somebody else has set meanwhile stays.
        """
        if not plan.gpus:
            return
        (uuid,) = plan.gpus
        found = _found_interval(plan) or Interval.DEFAULT
        try:
            if _interval_of(plan) is not found:
                self._time_slices.set_time_slice(uuid, NUMBERS[found], deadline)
                log.info("time-slice reset", gpu=uuid, interval=str(found))
        finally:
            self._restore_mode(uuid, _found_mode(plan))

    @staticmethod
    def describe(plan: SharingPlan, device: DeviceKey) -> Description:  # noqa: ARG004 (one GPU)
        """Return the interval, or that there is none."""
        if not plan.gpus:
            return Description(words="no effect on MIG devices")
        interval = str(_interval_of(plan))
        return Description(settings={"interval": interval}, words=f"interval {interval}")

    def _find(self, wanted: Sequence["_Wanted"], deadline: float) -> list[Interval | None]:
        """Return the time-slice of each GPU; side by side, as one can take seconds."""

        def find(one: _Wanted) -> Interval | None:
            if one.former is None:
                number = self._time_slices.recent(one.gpu.uuid)
                # A claim's own is set, or read to stand; only the default is believed to.
                if number is None or number == NUMBERS[one.interval] != 0:
                    number = self._time_slices.time_slice(one.gpu.uuid, deadline)
                found = None if number is None else _INTERVALS[number]
            else:
                found = one.former
            if NUMBERS[one.interval] and one.interval is not found:
                self._check_able(one, found or Interval.DEFAULT, deadline)
            return found

        if len(wanted) <= 1:
            return [find(one) for one in wanted]
        with ThreadPoolExecutor(len(wanted), thread_name_prefix="ask") as pool:
            return list(pool.map(find, wanted))

    def _check_able(self, one: "_Wanted", found: Interval, deadline: float) -> None:
        """Check that a card lets time-slices be set, by setting the one that was found."""
        uuid = one.gpu.uuid
        if uuid in self._able:
            return
        if not self._time_slices.set_time_slice(uuid, NUMBERS[found], deadline):
            raise _cannot(_described(one.gpu), one.interval, "Not Supported")
        self._able.add(uuid)

    def _plan(self, one: "_Wanted", found: Interval | None) -> SharingPlan:
        mode = self._modes.compute_mode(one.gpu.uuid)
        known = {} if found is None else {"foundInterval": str(found)}
        return SharingPlan(
            strategy=NAME,
            gpus=(one.gpu.uuid,),
            changes={
                "interval": str(one.interval),
                "computeMode": _DEFAULT_MODE if mode is None else mode,
                "device": _described(one.gpu),
                **known,
            },
        )

    def _restore_mode(self, uuid: str, found: int) -> None:
        if found != _DEFAULT_MODE and self._modes.compute_mode(uuid) == _DEFAULT_MODE:
            self._modes.set_compute_mode(uuid, found)


class _Wanted(Struct, frozen=True, kw_only=True):
    """What a claim wants of a GPU.

    `former` is what it had before a claim whose time-slice could not be put back; None: no such.
    """

    gpu: Gpu
    interval: Interval
    former: Interval | None


def plan_of_others(uuid: GpuUuid, device: str, config: "GpuConfig") -> SharingPlan | None:
    """Return the plan for a time-slice that another driver has set as a config says.

    What stood before is not known, and so taken for the default. None: the config sets none.
    """
    if config.sharing is None or config.sharing.strategy is not SharingStrategy.TIME_SLICING:
        return None
    changes = {
        "interval": str(_interval(config)),
        "computeMode": _DEFAULT_MODE,
        "device": f"{device} ({uuid})",
    }
    return SharingPlan(strategy=NAME, gpus=(uuid,), changes=changes)


def of_unknown(uuid: GpuUuid) -> SharingPlan:
    """Return the plan of a claim of which nothing is known; what stood before is the default."""
    changes = {"interval": str(Interval.DEFAULT), "computeMode": _DEFAULT_MODE}
    return SharingPlan(strategy=NAME, gpus=(uuid,), changes=changes)


def _former(gpu: Gpu, owed: Sequence[SharingPlan]) -> Interval | None:
    return next(
        (
            _found_interval(plan) or Interval.DEFAULT
            for plan in owed
            if plan.strategy == NAME and gpu.uuid in plan.gpus
        ),
        None,
    )


def _nothing_to_do(unit: MigUnit) -> SharingPlan:
    place = GpuPart(gpu=unit.gpu.uuid, placement=unit.device.placement)
    return SharingPlan(strategy=NAME, gpus=(), places=(place,))


def _interval_of(plan: SharingPlan) -> Interval:
    return Interval(str(plan.changes["interval"]))


def _found_interval(plan: SharingPlan) -> Interval | None:
    """Return the time-slice that stood before the plan; None when it could not be read."""
    found = plan.changes.get("foundInterval")  # records of the first format have none
    return Interval(str(found)) if found else None


def _interval(config: "GpuConfig") -> Interval:
    settings = config.sharing.time_slicing_config if config.sharing else None
    return (settings.interval if settings else None) or Interval.DEFAULT


def _found_mode(plan: SharingPlan) -> int:
    mode = plan.changes.get("computeMode")
    return mode if isinstance(mode, int) else _DEFAULT_MODE


def _described(gpu: Gpu) -> str:
    return f"{gpu_name(gpu.minor)} ({gpu.product_name}, {gpu.uuid})"


def _cannot(device: str, interval: Interval, reason: str) -> DriverError:
    return ConfigError(
        f"time-slice interval {interval} cannot be set on {device}: {reason}; use interval "
        f"{Interval.DEFAULT}, or {select_from(_SURE)}"
    )
