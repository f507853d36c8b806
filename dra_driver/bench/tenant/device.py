"""A work that is ready to be done, and what it needs of a GPU: memory, launches, an outcome.

A task has steps with a result that is known beforehand. cuda.py provides the GPU.

Arguments of kernels are values with their C types. Refused memory is a separate error, because some
works exist to find that out.
"""

import ctypes
from collections.abc import Callable

from msgspec import Struct

from dra_driver.bench.workload import MIB
from dra_driver.errors import DeviceError


class Task(Struct, frozen=True, kw_only=True):
    """A work that is ready to be done.

    Attributes:
        step: does one step, and returns when the GPU has done it.
        check: raises DeviceError if the GPU did not compute the right result.
        unit: what the work is counted in.
        units: how many units a step is.
        refused_mib: the memory that it was refused; None if nothing was refused.
    """

    step: Callable[[], None]
    check: Callable[[], None]
    unit: str
    units: float
    memory_mib: int
    refused_mib: int | None = None


def mib_of(size: int) -> int:
    """Return bytes in MiB, rounded up."""
    return -(-size // MIB)


def unworked(what: str) -> DeviceError:
    """Return the error for a GPU with this wrong result."""
    return DeviceError(
        f"the GPU's result is {what}: it did not do the work, so nothing is measured; look for Xid"
        " lines in dmesg"
    )


CType = (
    type[ctypes.c_void_p] | type[ctypes.c_float] | type[ctypes.c_uint] | type[ctypes.c_ulonglong]
)

Argument = tuple[int | float, CType]
"""A kernel's argument: its value, and its type."""


class RefusedError(DeviceError):
    """The GPU, or a limit on it, has less memory than was asked for."""


def pointer(address: int) -> Argument:
    """Return an argument that is an address in GPU memory."""
    return (address, ctypes.c_void_p)


def real(value: float) -> Argument:
    """Return an argument of type `float`."""
    return (value, ctypes.c_float)


def unsigned(value: int) -> Argument:
    """Return an argument of type `unsigned`."""
    return (value, ctypes.c_uint)


def count(value: int) -> Argument:
    """Return an argument of type `unsigned long long`."""
    return (value, ctypes.c_ulonglong)
