"""What a task needs of a GPU: memory, launches, an outcome to read. cuda.py has it.

Arguments of kernels are values with their C types. Refused memory is a separate error, because some
works are there to find that out.
"""

import ctypes
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from dra_driver.bench.tenant.kernels import Grid
from dra_driver.errors import DeviceError

CType = (
    type[ctypes.c_void_p] | type[ctypes.c_float] | type[ctypes.c_uint] | type[ctypes.c_ulonglong]
)

Argument = tuple[int | float, CType]
"""A kernel's argument: its value, and its type."""


class RefusedError(DeviceError):
    """The GPU, or a limit on it, has less memory than was asked for."""


class Seen(Struct, frozen=True, kw_only=True):
    """The device as CUDA shows it to this process. Under limits it shows less than the card has."""

    name: str
    multiprocessors: int
    memory_mib: int
    capability: tuple[int, int]


class Device(Protocol):
    """A GPU with a context."""

    def allocate(self, size: int) -> int:
        """Return the address of so many bytes, or raise RefusedError."""
        ...

    def free(self, address: int) -> None:
        """Give memory back."""
        ...

    def launch(self, name: str, grid: Grid, *arguments: Argument) -> None:
        """Start a kernel, after those that were started before."""
        ...

    def wait(self) -> None:
        """Wait for all that was started."""
        ...

    def read(self, address: int, floats: int) -> Sequence[float]:
        """Return numbers from GPU memory."""
        ...


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
