"""GPM: how much of a GPU, or of a GPU instance, was used between two moments; only reads.

In: an open NVML, and a GPU. Out: `GpmUsage`. Rules (nvml.h): GPM exists from Hopper on; two samples
must be more than 100 ms apart; in MIG mode the GPU is asked, with the id of one of its instances,
and never a MIG device. What the driver does not tell this process is None. Only commands for people
use this module: the driver's own processes on a node do not load it.
"""

import math
from typing import Any

import pynvml
from msgspec import Struct

from dra_driver.devices.nvml.errors import NOT_TOLD, nvml_errors, optional
from dra_driver.devices.nvml.library import NvmlLibrary
from dra_driver.errors import DeviceError

_METRICS = (pynvml.NVML_GPM_METRIC_SM_UTIL, pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL)


class GpmUsage(Struct, frozen=True, kw_only=True):
    """Usage between two samples, in percent.

    Attributes:
        busy_sms: how many of the SMs were busy.
        bandwidth: how much of the memory's bandwidth was used.
    """

    busy_sms: float | None = None
    bandwidth: float | None = None


class GpmCount:
    """Measures once, from `start` to `stop`; the usage is empty without GPM or an answer.

    In MIG mode it measures the GPU instance with the given id.
    """

    def __init__(self, nvml: NvmlLibrary, uuid: str, gpu_instance: int | None = None) -> None:
        self._nvml = nvml
        self._uuid = uuid
        self._instance = gpu_instance
        self._first: Any = None

    def start(self) -> None:
        """Take the first sample."""
        self._first = self._in_time(self._supported_sample)

    def stop(self) -> GpmUsage:
        """Take the second sample; return the usage between the two."""
        usage: GpmUsage | None = self._first and self._in_time(self._between)
        return usage or GpmUsage()

    def _in_time(self, call: Any) -> Any:
        def ask() -> Any:
            with nvml_errors():
                return optional(call, absent=NOT_TOLD)

        try:
            return self._nvml.in_time(self._uuid, ask)
        except DeviceError:  # must not stop the program that is measured
            return None

    def _supported_sample(self) -> Any:
        handle = self._nvml.handle(self._uuid)
        if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return None
        return self._sample()

    def _sample(self) -> Any:
        handle = self._nvml.handle(self._uuid)
        sample = pynvml.nvmlGpmSampleAlloc()
        try:
            if self._instance is None:
                return pynvml.nvmlGpmSampleGet(handle, sample)
            return pynvml.nvmlGpmMigSampleGet(handle, self._instance, sample)
        except pynvml.NVMLError:
            pynvml.nvmlGpmSampleFree(sample)
            raise

    def _between(self) -> GpmUsage:
        asked = pynvml.c_nvmlGpmMetricsGet_t()
        asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(_METRICS)
        for metric, number in zip(asked.metrics, _METRICS, strict=False):
            metric.metricId = number
        try:
            asked.sample1, asked.sample2 = self._first, self._sample()
            try:
                pynvml.nvmlGpmMetricsGet(asked)
            finally:
                pynvml.nvmlGpmSampleFree(asked.sample2)
        finally:
            pynvml.nvmlGpmSampleFree(self._first)
        busy_sms, bandwidth = map(_percent, asked.metrics[: len(_METRICS)])
        return GpmUsage(busy_sms=busy_sms, bandwidth=bandwidth)


def _percent(metric: Any) -> float | None:
    """Return a metric's value; None if it has none, or one that is not a percentage."""
    value = float(metric.value)
    if metric.nvmlReturn != pynvml.NVML_SUCCESS or not math.isfinite(value) or value < 0:
        return None
    return min(value, 100.0)
