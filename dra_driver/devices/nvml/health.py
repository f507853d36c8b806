"""The health of GPUs according to NVML: facts that each look reads, and events.

A fact that a card lacks is None in `Vitals`; only a GPU out of reach is an error. Rules (nvml.h):
each field has its own return code; events of MIG instances come with their GPU's handle
(dra-driver-nvidia-gpu#904); events from before a GPU was registered are never reported; an event
set ends with nvmlShutdown; GPU_IS_LOST at the end of waiting does not name the GPU.
"""

import contextlib
import ctypes
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pynvml
import structlog

from dra_driver.devices.model import Fabric, GpuEvent, InstanceId, Vitals
from dra_driver.devices.nvml.calls import ANSWER_SECONDS, HEARING, NvmlCalls
from dra_driver.devices.nvml.errors import nvml_errors, told
from dra_driver.devices.nvml.load import instance_number
from dra_driver.errors import DeviceError, TransientError

_RECOVERY = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_UNCORRECTED = pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL
_ROWS_PENDING = pynvml.NVML_FI_DEV_REMAPPED_PENDING
_ROWS_FAILED = pynvml.NVML_FI_DEV_REMAPPED_FAILURE
_PAGES_PENDING = pynvml.NVML_FI_DEV_RETIRED_PENDING
_FIELDS = (_RECOVERY, _UNCORRECTED, _ROWS_PENDING, _ROWS_FAILED, _PAGES_PENDING)

_XID = pynvml.nvmlEventTypeXidCriticalError
_WANTED = (
    _XID
    | pynvml.nvmlEventTypeDoubleBitEccError
    | pynvml.nvmlEventTypeDramRetirementEvent
    | pynvml.nvmlEventTypeDramRetirementFailure
    | pynvml.nvmlEventTypeFatalPoisonError
    | pynvml.nvmlEventTypeGpuUnavailableError
    | pynvml.nvmlEventTypeGpuRecoveryAction
)
"""The events to wait for. All except XIDs say only that it is time for a look."""

AGAIN_SECONDS = 30.0
"""The time until a GPU that could not be registered for events is tried again."""

log = structlog.get_logger()


def read_vitals(handle: object, fabric: Fabric | None = None) -> Vitals:
    """Return the health of a GPU. Raises NVMLError only if it is out of reach.

    `fabric` is what NVML has said about the GPU's fabric.
    """
    fields = _field_values(handle)
    pending = fields.get(_ROWS_PENDING, fields.get(_PAGES_PENDING))
    failed = fields.get(_ROWS_FAILED)
    if failed is None and _PAGES_PENDING in fields:
        failed = 0  # a card that retires pages has no spare rows that could run out
    return Vitals(
        recovery_action=fields.get(_RECOVERY),
        rows_pending=None if pending is None else bool(pending),
        rows_failed=None if failed is None else bool(failed),
        uncorrected=fields.get(_UNCORRECTED),
        slowdown=told(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
        fabric=fabric,
    )


def _field_values(handle: object) -> dict[int, int]:
    """Return the fields that the card has, by one call for all."""
    values = told(lambda gpu: pynvml.nvmlDeviceGetFieldValues(gpu, list(_FIELDS)), handle)
    return {
        int(value.fieldId): field_number(value)
        for value in values or ()
        if value.nvmlReturn == pynvml.NVML_SUCCESS
    }


def field_number(value: Any) -> int:
    """Return a field's number, from the member of the union that its type names."""
    if value.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT:
        return int(value.value.uiVal)
    if value.valueType == pynvml.NVML_VALUE_TYPE_SIGNED_INT:
        return int(value.value.siVal)
    return int(value.value.ullVal)


class GpuEvents:
    """The events of the open library. `wait` is for one thread; `forget` is for any."""

    def __init__(self, calls: NvmlCalls, indices: Callable[[], Mapping[str, int]]) -> None:
        """Take what makes the calls, and a function that returns the GPUs' indices by UUID."""
        self._calls = calls
        self._indices = indices
        self.forget()

    def forget(self) -> None:
        """Start over, because the library is being closed, and the event set ends with it."""
        self._set: Any = None
        self._gpus: dict[int | None, str] = {}
        self._settled: set[str] = set()
        self._refused: set[str] = set()
        self._not_before = 0.0

    def wait(self, seconds: float) -> GpuEvent | None:
        """Return the next event; None if there is none within `seconds`.

        Raises LostError if a GPU is lost (NVML does not say which), TransientError if NVML is being
        closed or knows no GPU that reports events, and DeviceError if it refuses or does not
        answer.
        """
        self._register_all()
        if not self._gpus:
            raise TransientError("the GPU driver is not open now, for any GPU's events")
        with nvml_errors():
            return self._calls.about(HEARING, lambda: self._next(seconds), seconds + ANSWER_SECONDS)

    def _next(self, seconds: float) -> GpuEvent | None:
        events = self._set
        if events is None:
            raise TransientError("the GPU driver is being reopened; this is retried")
        try:
            data = pynvml.nvmlEventSetWait_v2(events, int(seconds * 1000))
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_TIMEOUT:
                return None
            raise
        gpu = self._gpus.get(_address(data.device))
        if gpu is None:
            gpu = str(pynvml.nvmlDeviceGetUUID(data.device))
        xid = int(data.eventData) if data.eventType == _XID else None
        return GpuEvent(gpu=gpu, xid=xid, instance=_instance(data))

    def _register_all(self) -> None:
        """Register the GPUs that are not registered yet; those that NVML refuses are retried later.

        A GPU that has become known since is registered at once: earlier events of it are lost.
        """
        known = self._indices()
        if time.monotonic() >= self._not_before:
            self._refused.clear()
        done = self._settled | self._refused
        missing = {uuid: index for uuid, index in known.items() if uuid not in done}
        if not missing:
            return
        before = len(self._gpus)
        if self._set is None:
            with nvml_errors():
                self._set = self._calls.about(HEARING, pynvml.nvmlEventSetCreate, ANSWER_SECONDS)
        for uuid, index in missing.items():
            # With the GPU as the subject: if it hangs, the others are registered all the same.
            with contextlib.suppress(DeviceError, TransientError), nvml_errors():
                self._calls.about(str(index), partial(self._register, uuid, index))
        self._refused = known.keys() - self._settled
        self._not_before = time.monotonic() + AGAIN_SECONDS
        if len(self._gpus) > before:
            log.info("gpu events received", gpus=len(self._gpus))

    def _register(self, uuid: str, index: int) -> None:
        events = self._set
        if events is None:
            return
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        try:
            kinds = _WANTED & pynvml.nvmlDeviceGetSupportedEventTypes(handle)
            if kinds:
                pynvml.nvmlDeviceRegisterEvents(handle, kinds, events)
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_NOT_SUPPORTED:
                raise
            kinds = 0
        self._settled.add(uuid)
        if kinds & _XID:
            self._gpus[_address(handle)] = uuid
        else:
            log.info("gpu reports no xids", gpu=uuid)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _instance(data: Any) -> InstanceId | None:
    number = instance_number(data.gpuInstanceId)
    if number is None:
        return None
    compute_instance = instance_number(data.computeInstanceId)
    return InstanceId(gpu_instance=number, compute_instance=compute_instance)
