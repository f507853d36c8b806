"""The driver's own NVML session on a simulated machine."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from dra_driver.devices.model import GpuUuid, Inventory, MigSlot
from dra_driver.devices.nvml.calls import NvmlCalls
from dra_driver.devices.session import DriverSession
from dra_driver.simulator.machine import Machine


def session_on(
    machine: Machine,
    made_here: Callable[[], AbstractSet[MigSlot]] = frozenset,
    calls: NvmlCalls | None = None,
    turned_on: Callable[[], AbstractSet[GpuUuid]] = frozenset,
    with_passthrough: Callable[[Inventory], Inventory] = lambda inventory: inventory,
) -> DriverSession:
    """A session as the driver of that machine has it, which made what `made_here` says."""
    return DriverSession(
        driver_root=machine.driver_root,
        dev=machine.dev_root / "dev",
        proc_root=machine.proc_root,
        sys_root=machine.sys_root,
        made_here=made_here,
        turned_on=turned_on,
        calls=calls,
        with_passthrough=with_passthrough,
    )
