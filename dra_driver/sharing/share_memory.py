"""Finds out what sharing/limiters.py needs to know of this node and of a device's tenants."""

from dra_driver.devices.device import Base, Mig
from dra_driver.devices.model import Gpu
from dra_driver.devices.shares import ShareStrategy
from dra_driver.sharing.limiters import Limited, limited
from dra_driver.sharing.memory_groups import MemoryGroups


class ShareMemory:
    """Tells what limits the memory of shares on this node. For any thread.

    `groups` limits it by control groups; `sees_processes` is whether this process can see how much
    memory the processes of containers have.
    """

    def __init__(self, groups: MemoryGroups, *, sees_processes: bool = False) -> None:
        self.groups = groups
        self.sees_processes = sees_processes

    def limited(
        self, gpu: Gpu, base: Base, strategy: ShareStrategy, *, has_size: bool = False
    ) -> Limited:
        """Return what limits the memory of a device's shares, for its next tenant.

        `has_size`: it is known how much memory a share has. Raises DeviceError or TransientError if
        the GPU does not report what it can do, StateError if the records cannot be read.
        """
        # Control groups do not limit MIG devices, so all tenants of one are limited alike anyway.
        tenants = [] if isinstance(base, Mig) else self.groups.tenants(gpu.uuid)
        return limited(
            gpu,
            strategy,
            has_size=has_size,
            why_no_groups=self.groups.why_not(base),
            sees_processes=self.sees_processes,
            tenants={tenant.limited_by for tenant in tenants},
        )
