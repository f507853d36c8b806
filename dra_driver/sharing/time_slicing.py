"""TimeSlicing: the processes of a claim's containers take turns on each of its GPUs.

In: GPUs under a config with an interval. Out: the GPU's time-slice, set by nvidia-smi, and its
compute mode DEFAULT, set through NVML, because the other modes refuse a second process.

Both are settings of the GPU, not of a client, and are lost at a reboot. Both are read first and
restored at the end, because an admin may have set them. A time-slice that was read or set a moment
ago is not read again. If an earlier claim's time-slice could not be restored yet, the value from
before that claim counts. A time-slice that cannot be read is assumed to be the default. Whether a
card accepts time-slices cannot be read (dra-driver-nvidia-gpu#1183), so its present value is set
once to find out. Only whole GPUs have a time-slice. On MIG devices the strategy is accepted and
does nothing; its step has no GPU, and `dra-driver status` says so.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import TYPE_CHECKING

import structlog

from dra_driver.devices.device import Device, Whole
from dra_driver.devices.model import Gpu, GpuUuid
from dra_driver.devices.names import gpu_name
from dra_driver.errors import ConfigError, DriverError
from dra_driver.sharing.base import ComputeModes, Doer, Group, select_from
from dra_driver.sharing.nvidia_smi import NvidiaSmi
from dra_driver.sharing.steps import SharingStep, TimeSlice
from resource_nvidia_com.v1beta1.names import Interval

if TYPE_CHECKING:
    from resource_nvidia_com.v1beta1.configs import GpuConfig

log = structlog.get_logger()

NUMBERS: Mapping[Interval, int] = MappingProxyType(
    {Interval.DEFAULT: 0, Interval.SHORT: 1, Interval.MEDIUM: 2, Interval.LONG: 3}
)
"""The numbers of the intervals in nvidia-smi."""

_INTERVALS = MappingProxyType({number: interval for interval, number in NUMBERS.items()})

_DEFAULT_MODE = 0
_PREEMPTION = (6, 0)  # Pascal is the first that can interrupt a kernel at the end of its slice
_SURE = (7, 0)  # some Pascal cards, such as the P4, cannot set a time-slice


class TimeSlicing(Doer[TimeSlice]):
    """The strategy TimeSlicing: one step for each GPU."""

    def __init__(self, time_slices: NvidiaSmi, modes: ComputeModes) -> None:
        self._time_slices = time_slices
        self._modes = modes
        self._able: set[GpuUuid] = set()

    def plan(self, groups: Sequence[Group], deadline: float) -> tuple[SharingStep, ...]:
        """Return a step for each GPU, with its present time-slice and compute mode.

        For a MIG device, the step changes nothing.
        """
        wanted = [
            (unit.gpu, _interval(group.config), group.owed)
            for group in groups
            if group.config is not None and group.config.kind == "GpuConfig"
            for unit in group.wholes
        ]
        for gpu, interval, _ in wanted:
            if NUMBERS[interval] and gpu.cuda_compute_capability < _PREEMPTION:
                raise _cannot(_described(gpu), interval, "its architecture has no preemption")

        def planned(one: tuple[Gpu, Interval, Sequence[SharingStep]]) -> TimeSlice:
            return self._planned(*one, deadline)

        if len(wanted) <= 1:
            steps = [*map(planned, wanted)]
        else:  # in parallel, because one can take seconds
            with ThreadPoolExecutor(len(wanted), thread_name_prefix="ask") as pool:
                steps = [*pool.map(planned, wanted)]
        migs = (unit.device for group in groups for unit in group.migs)
        return (*steps, *(TimeSlice(devices=(device,)) for device in migs))

    def do(self, step: TimeSlice, deadline: float) -> None:
        """Set the time-slice and the compute mode."""
        for uuid in step.gpus:
            # If only the default was asked for, a card that cannot set time-slices has it anyway.
            if (
                step.interval is not step.found_interval
                and not self._time_slices.set_time_slice(uuid, NUMBERS[step.interval], deadline)
                and NUMBERS[step.interval]
            ):
                raise _cannot(step.card or uuid, step.interval, "Not Supported")
            if step.found_mode != _DEFAULT_MODE:
                self._modes.set_compute_mode(uuid, _DEFAULT_MODE)
            log.info("time-slice set", gpu=uuid, interval=str(step.interval))

    def undo(self, step: TimeSlice, deadline: float) -> None:
        """Restore the time-slice and the compute mode that were found.

        A mode that something else has set meanwhile stays.
        """
        for uuid in step.gpus:
            former = step.found_interval or Interval.DEFAULT
            try:
                if step.interval is not former:
                    self._time_slices.set_time_slice(uuid, NUMBERS[former], deadline)
                    log.info("time-slice reset", gpu=uuid, interval=str(former))
            finally:
                self._restore_mode(uuid, step.found_mode)

    def _planned(
        self, gpu: Gpu, interval: Interval, owed: Sequence[SharingStep], deadline: float
    ) -> TimeSlice:
        former = self._former(gpu.uuid, interval, owed, deadline)
        if NUMBERS[interval] and interval is not former:
            self._check_able(gpu, interval, former or Interval.DEFAULT, deadline)
        mode = self._modes.compute_mode(gpu.uuid)
        return TimeSlice(
            devices=_of_gpu(gpu.uuid),
            interval=interval,
            found_interval=former,
            found_mode=_DEFAULT_MODE if mode is None else mode,
            card=_described(gpu),
        )

    def _former(
        self, uuid: GpuUuid, interval: Interval, owed: Sequence[SharingStep], deadline: float
    ) -> Interval | None:
        """Return a GPU's time-slice, or that from before an earlier claim that still owes it."""
        for step in owed:
            if isinstance(step, TimeSlice) and uuid in step.gpus:
                return step.found_interval or Interval.DEFAULT
        number = self._time_slices.recent(uuid)
        # If the recent value is already the wanted one, it is verified, but for a default.
        if number is None or number == NUMBERS[interval] != 0:
            number = self._time_slices.time_slice(uuid, deadline)
        return None if number is None else _INTERVALS[number]

    def _check_able(self, gpu: Gpu, interval: Interval, former: Interval, deadline: float) -> None:
        """Check that a card accepts time-slices, by setting the one that was found."""
        if gpu.uuid in self._able:
            return
        if not self._time_slices.set_time_slice(gpu.uuid, NUMBERS[former], deadline):
            raise _cannot(_described(gpu), interval, "Not Supported")
        self._able.add(gpu.uuid)

    def _restore_mode(self, uuid: str, former: int) -> None:
        if former != _DEFAULT_MODE and self._modes.compute_mode(uuid) == _DEFAULT_MODE:
            self._modes.set_compute_mode(uuid, former)


def of_unknown(uuid: GpuUuid) -> TimeSlice:
    """Return the step of a claim about which nothing is known; the default counts as found."""
    return TimeSlice(devices=_of_gpu(uuid))


def _of_gpu(uuid: GpuUuid) -> tuple[Device, ...]:
    return (Device(base=Whole(gpu=uuid)),)


def _interval(config: "GpuConfig") -> Interval:
    settings = config.sharing.time_slicing_config if config.sharing else None
    return (settings.interval if settings else None) or Interval.DEFAULT


def _described(gpu: Gpu) -> str:
    return f"{gpu_name(gpu.minor)} ({gpu.product_name}, {gpu.uuid})"


def _cannot(device: str, interval: Interval, reason: str) -> DriverError:
    return ConfigError(
        f"time-slice interval {interval} cannot be set on {device}: {reason}; use interval "
        f"{Interval.DEFAULT}, or {select_from(_SURE)}"
    )
