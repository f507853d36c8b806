"""The meaning of NVML's refusals: a missing fact, a cause in words, or an error that may pass.

Errors have NVML's own words between cause and advice. Source: nvml.h, nvmlReturn_t.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from traceback import walk_tb
from types import MappingProxyType
from typing import Any, TypeVar

import pynvml

from dra_driver.errors import DeviceError, LostError, TransientError

T = TypeVar("T")

ABSENT_FACT = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)
NOT_TOLD = ABSENT_FACT | {pynvml.NVML_ERROR_NO_PERMISSION}
"""Codes for a fact that does not exist or that this process may not read."""
# NVML's code: the cause in words, and what to do. NVML's own words are put between the two.
_ADVICE = MappingProxyType(
    {
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
            "the GPU driver is not loaded, or its device nodes are not in this /dev",
            "load it (modprobe nvidia), or mount the node's /dev; if that fails, see dmesg",
        ),
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
            "the kernel module and the libraries of the GPU driver have different versions",
            "reload the module, or reboot the node, to complete the upgrade",
        ),
        pynvml.NVML_ERROR_NO_PERMISSION: (
            "this process may not use the GPU driver",
            "run the driver's container privileged, with the node's /dev",
        ),
        pynvml.NVML_ERROR_GPU_IS_LOST: (
            "the GPU has fallen off the bus or is otherwise out of reach",
            "look for NVRM and Xid lines in dmesg; the node has to be rebooted",
        ),
        pynvml.NVML_ERROR_RESET_REQUIRED: (
            "the GPU needs a reset",
            "reset the GPU, as `dra-driver health` explains, or drain the node and reboot it",
        ),
        pynvml.NVML_ERROR_INSUFFICIENT_POWER: (
            "the GPU's external power is not connected",
            "check the power cables of the GPU",
        ),
        pynvml.NVML_ERROR_IRQ_ISSUE: (
            "the kernel found an interrupt problem with the GPU",
            "see dmesg; the firmware settings of the server may have to change",
        ),
        pynvml.NVML_ERROR_CORRUPTED_INFOROM: (
            "the GPU's infoROM is corrupted",
            "have the GPU replaced",
        ),
    }
)
_OTHER_ADVICE = "look for NVRM lines in dmesg, and check that nvidia-smi works on the node"

# Errors that somebody has to do something about.
LOST_CODES = frozenset(
    {
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_RESET_REQUIRED,
        pynvml.NVML_ERROR_INSUFFICIENT_POWER,
        pynvml.NVML_ERROR_CORRUPTED_INFOROM,
    }
)

# Errors that pass when processes end, or when the driver is done with something else.
_PASSING = frozenset(
    {
        pynvml.NVML_ERROR_IN_USE,
        pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES,
        pynvml.NVML_ERROR_NOT_READY,
        pynvml.NVML_ERROR_TIMEOUT,
    }
)


def optional(
    call: Callable[..., T], *args: object, absent: Collection[int] = ABSENT_FACT
) -> T | None:
    """Return what a call answers, or None if the card or the driver does not have the fact.

    `absent` are the nvmlReturn_t codes that say so.
    """
    try:
        return call(*args)
    except pynvml.NVMLError as error:
        if error.value in absent:
            return None
        raise


def told(call: Callable[[Any], Any], handle: object) -> Any:
    """Return what NVML answers; None if it refuses. Raises NVMLError if the GPU is out of reach."""
    try:
        return call(handle)
    except pynvml.NVMLError as error:
        if error.value in LOST_CODES:
            raise
        return None


@contextmanager
def nvml_errors(doing: str = "") -> Iterator[None]:
    """Turn NVML's refusals into DriverErrors.

    `doing` says what is being done, such as `destroying GPU instance 3 of GPU-…`; with it, what may
    pass by itself is a TransientError. A GPU out of reach is a LostError. Everything else is a
    DeviceError, including an answer that is not a text, an address or a UUID.
    """
    prefix = f"{doing}: " if doing else ""
    try:
        yield
    except pynvml.NVMLError as error:
        if doing and error.value in _PASSING:
            raise TransientError(f"{prefix}{_passing_cause(error)} (NVML: {error})") from error
        cause, advice = _ADVICE.get(error.value, (f"NVML refused{_call(error)}", _OTHER_ADVICE))
        kind = LostError if error.value in LOST_CODES else DeviceError
        raise kind(f"{prefix}{cause} (NVML: {error}); {advice}") from error
    except ValueError as error:
        raise DeviceError(
            f"{prefix}NVML's answer cannot be understood ({error}); {_OTHER_ADVICE}"
        ) from error


def _call(error: pynvml.NVMLError) -> str:
    """Return a space and the NVML function that refused; empty if the traceback has none."""
    names = [frame.f_code.co_name for frame, _ in walk_tb(error.__traceback__)]
    return next((f" {name}" for name in reversed(names) if name.startswith("nvml")), "")


def _passing_cause(error: pynvml.NVMLError) -> str:
    if error.value == pynvml.NVML_ERROR_IN_USE:
        return (
            "processes still use it; this is retried until they have ended"
            " (fuser -v /dev/nvidia* lists them)"
        )
    if error.value == pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES:
        return "there is no room for it; this is retried until its place is free"
    return "the GPU is busy"
