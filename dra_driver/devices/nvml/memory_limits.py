"""NVML's memory limits of control groups (driver R615 or newer); part of the adapter to pynvml.

Processes in a group, and in those below it, get no more of a GPU's memory than the hard limit.
Allocations above it fail, but the processes go on. Source: nvml.h, nvmlDeviceSetMemoryLimits_v1.
The path is as this process sees it, at /sys/fs/cgroup, where NVIDIA's documentation requires cgroup
v2. Whether NVML accepts another place is not known, so driver and cleanup use no other.

If the GPU is not in persistence mode and nobody else uses it, a limit may last only as long as NVML
is open. Soft limits are always 0: only MPS obeys them, and if the kernel keeps the limits, they add
up in the groups above and stay there. A limit is read back after it is set, because the kernel
ignores a limit below what is in use and reports success. A GPU in MIG mode accepts limits but does
not enforce them.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

import pynvml

from dra_driver.devices.nvml.errors import nvml_errors
from dra_driver.devices.shares import MIB
from dra_driver.errors import DeviceError

_NONE = pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX
FIRST_DRIVER = 615
"""The first branch of the GPU driver that has memory limits."""

# NVML's code: the cause in words, and what to do. NVML's own words are put between the two.
_ADVICE = MappingProxyType(
    {
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: (
            "the GPU driver is older than R615 and has no memory limits",
            "install a newer one",
        ),
        pynvml.NVML_ERROR_NO_PERMISSION: (
            "this process may not set memory limits",
            "run the driver's container privileged, with the node's control groups writable",
        ),
        pynvml.NVML_ERROR_NOT_FOUND: (
            "the control group does not exist",
            "see whether its pod still runs",
        ),
        pynvml.NVML_ERROR_NOT_SUPPORTED: (
            "the GPU driver does not limit memory there",
            "enable the controller misc, and set the driver's RmMemacctMode to 3",
        ),
        pynvml.NVML_ERROR_INVALID_ARGUMENT: (
            "processes of the control group use more than that now, or it is not a control group",
            "end them, and try again",
        ),
    }
)


def read_limit(handle: object, group: Path) -> int | None:
    """Return a control group's hard limit in bytes, or the nearest above it if it has none itself.

    None if no group up to the root has any, or if the GPU does not support limits: NVML does not
    distinguish these if the driver keeps the limits. Raises DeviceError if there is no such group,
    the driver is older than R615, or NVML refuses.
    """
    limit = _read(handle, group)
    return None if limit is None else limit[0]


def _read(handle: object, group: Path) -> tuple[int | None, int] | None:
    """Return the hard limit, None for none, and the bytes that count against it now."""
    answer = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=os.fsencode(group))
    with _limit_errors(f"reading the memory limit of {group}"):
        try:
            pynvml.nvmlDeviceGetMemoryLimits_v1(handle, answer)
        except pynvml.NVMLError_NotSupported:
            return None
    hard_bytes = None if answer.hardLimit == _NONE else int(answer.hardLimit)
    return hard_bytes, int(answer.currentUsed)


def write_limit(handle: object, group: Path, hard_bytes: int | None) -> None:
    """Set the hard limit of a control group in bytes, or clear it with None; needs root.

    The driver may round it down by less than a MiB. Raises DeviceError if NVML refuses, or if
    another limit is in force because processes already have more.
    """
    doing = f"limiting the memory of {group}"
    with _limit_errors(doing):
        _set(handle, group, 0, _NONE if hard_bytes is None else hard_bytes)
    limit = _read(handle, group)
    is_set, used = limit or (None, 0)
    if limit is None or not _is_met(hard_bytes, is_set):
        raise DeviceError(
            f"{doing} to {_words(hard_bytes)}: {_words(is_set)} is in force, though NVML reported"
            f" success, and processes there have {used} bytes; end them, and try again"
        )


def obstacle(handle: object, group: Path) -> str | None:
    """Return why the memory of control groups below a group cannot be limited; None if it can.

    The only way to know is to set a limit, so the group's own limit is set again, even if it is
    "none". The group should be one that stays, and must not be the root. A GPU in MIG mode is not
    recognised. Raises DeviceError if the GPU is out of reach.
    """
    answer = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=os.fsencode(group))
    answer.hardLimit = _NONE
    with nvml_errors(f"asking for memory limits of {group}"):
        try:
            with suppress(pynvml.NVMLError_NotSupported):  # it has none, or cannot have one
                pynvml.nvmlDeviceGetMemoryLimits_v1(handle, answer)
            _set(handle, group, int(answer.softLimit), int(answer.hardLimit))
        except pynvml.NVMLError as error:
            if error.value not in _ADVICE:
                raise
            cause, advice = _ADVICE[error.value]
            return f"{cause} ({group}, NVML: {error}); {advice}"
    return None


def _set(handle: object, group: Path, soft: int, hard: int) -> None:
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t(
        nameSpace=os.fsencode(group), softLimit=soft, hardLimit=hard
    )
    pynvml.nvmlDeviceSetMemoryLimits_v1(handle, limits)


def _is_met(wanted: int | None, is_set: int | None) -> bool:
    if wanted is None or is_set is None:
        return wanted is is_set
    return wanted - MIB < is_set <= wanted


def _words(hard_bytes: int | None) -> str:
    return "no limit" if hard_bytes is None else f"{hard_bytes} bytes"


@contextmanager
def _limit_errors(doing: str) -> Iterator[None]:
    with nvml_errors(doing):
        try:
            yield
        except pynvml.NVMLError as error:
            if error.value not in _ADVICE:
                raise
            cause, advice = _ADVICE[error.value]
            raise DeviceError(f"{doing}: {cause} (NVML: {error}); {advice}") from error
