"""NVML's word on how busy a GPU is, and with which clocks: read, never set.

In: a handle of the open library. Out: frozen values; what a card lacks is None. Rules (nvml.h):
utilisation is the share of the last sample period, up to a second long, in which any kernel ran, or
memory was read or written; energy counts in millijoules since the driver was loaded, from Volta on;
a GPU in MIG mode says neither.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml

from dra_driver.devices.nvml.errors import optional
from dra_driver.devices.nvml.load import read_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Clocks in MHz, and the power limit in milliwatts."""

    sm: int | None = None
    most_sm: int | None = None
    memory: int | None = None
    power_limit_milliwatts: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """How busy a GPU is at a moment; shares in percent, memory in bytes."""

    sm_percent: int | None = None
    memory_percent: int | None = None
    memory_used_bytes: int | None = None
    energy_millijoules: int | None = None
    sm_clock: int | None = None


def read_clocks(handle: object) -> Clocks:
    """Return a GPU's clocks as they are, and the highest that it can have."""
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
    return _number(optional(lambda one: call(one, which), handle))


def _number(value: Any) -> int | None:
    return None if value is None else int(value)
