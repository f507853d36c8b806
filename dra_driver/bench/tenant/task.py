"""A work that is ready to be done, as steps with a result that is known beforehand."""

from collections.abc import Callable

from msgspec import Struct

from dra_driver.bench.tenant.device import Device
from dra_driver.bench.workload import MIB
from dra_driver.errors import DeviceError

_TOLERANCE = 1e-3


class Task(Struct, frozen=True, kw_only=True):
    """A work that is ready to be done.

    Attributes:
        step: does one step, and returns when the GPU has done it.
        check: raises DeviceError if the GPU did not compute the right result.
        unit: what the work is counted in.
        units: how many units a step is.
        refused_mib: the memory that it was refused; None if nothing was refused.
        wrong: returns how many results were wrong so far; None if the first one ends the work.
    """

    step: Callable[[], None]
    check: Callable[[], None]
    unit: str
    units: float
    memory_mib: int
    refused_mib: int | None = None
    wrong: Callable[[], int] | None = None


def mib_of(size: int) -> int:
    """Return bytes in MiB, rounded up."""
    return -(-size // MIB)


def check_first(gpu: Device, address: int, wanted: float) -> None:
    """Raise DeviceError if the first number at an address is not `wanted`."""
    (value,) = gpu.read(address, 1)
    if abs(value - wanted) > _TOLERANCE * abs(wanted):
        raise unworked(f"{value:g} where {wanted:g} is right")


def unworked(what: str) -> DeviceError:
    """Return the error of a GPU with this wrong result."""
    return DeviceError(
        f"the GPU's result is {what}: it did not do the work, so nothing is measured; look for Xid"
        " lines in dmesg"
    )
