"""How busy a GPU is at one moment, and its clocks; only reads.

What a card lacks is None. Rules (nvml.h): energy is counted in millijoules since the driver was
loaded, from Volta on; a GPU in MIG mode reports neither that nor utilisation. Only commands for
people use this module: the driver's own processes on a node do not load it.
"""

from collections.abc import Callable
from typing import Any

import pynvml
from msgspec import Struct

from dra_driver.devices.nvml.errors import optional
from dra_driver.devices.nvml.load import read_memory


class Clocks(Struct, frozen=True, kw_only=True):
    """Clocks in MHz, and the power limit in milliwatts."""

    sm: int | None = None
    most_sm: int | None = None
    memory: int | None = None
    power_limit_milliwatts: int | None = None


class Busy(Struct, frozen=True, kw_only=True):
    """How busy a GPU is at one moment; shares in percent, memory in bytes."""

    sm_percent: int | None = None
    memory_percent: int | None = None
    memory_used_bytes: int | None = None
    energy_millijoules: int | None = None
    sm_clock: int | None = None


def read_clocks(handle: object) -> Clocks:
    """Return a GPU's current clocks, its highest SM clock, and its power limit."""
    return Clocks(
        sm=_clock(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        most_sm=_clock(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM),
        memory=_clock(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        power_limit_milliwatts=_number(optional(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)),
    )


def read_busy(handle: object) -> Busy:
    """Return how busy a GPU is."""
    rates = optional(pynvml.nvmlDeviceGetUtilizationRates, handle)
    memory = read_memory(handle)
    return Busy(
        sm_percent=None if rates is None else int(rates.gpu),
        memory_percent=None if rates is None else int(rates.memory),
        memory_used_bytes=None if memory is None else memory.used_bytes,
        energy_millijoules=_number(optional(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle)),
        sm_clock=_clock(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
    )


def _clock(call: Callable[[Any, int], Any], handle: object, which: int) -> int | None:
    return _number(optional(lambda gpu: call(gpu, which), handle))


def _number(value: Any) -> int | None:
    return None if value is None else int(value)
