"""Made-up nodes: what the driver would find on each of many machines of one profile.

In: a profile. Out: the driver's own inventory. A machine is made, looked at once through NVML as on
a real node, and removed; every node is that machine with UUIDs of its own, which follow from the
node's name. Needs no root and no network.
"""

import tempfile
import uuid
from pathlib import Path

from msgspec.structs import replace

from dra_driver.devices.model import GpuUuid, Inventory
from dra_driver.devices.session import DriverSession
from dra_driver.simulator.device_nodes import NodeKind
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.machine import Machine
from dra_driver.simulator.profile import Profile


def inventory_of(profile: str | Profile) -> Inventory:
    """Return what the driver finds on a machine of this profile, such as `h100x8`.

    Raises DriverError if there is no such profile, or the machine cannot be made.
    """
    options = Options(nodes=NodeKind.PLACEHOLDER, userspace="stand-in")
    with tempfile.TemporaryDirectory(prefix="dra-nodes-") as folder:
        machine = Machine.create(Path(folder) / "gpus", profile, options)
        session = DriverSession(
            driver_root=machine.driver_root,
            dev=machine.dev_root / "dev",
            proc_root=machine.proc_root,
            sys_root=machine.sys_root,
        )
        try:
            return session.look()
        finally:
            session.close()
            machine.destroy()


def on_node(inventory: Inventory, node: str) -> Inventory:
    """Return the inventory with the UUIDs that its GPUs have on a node of this name."""
    return replace(
        inventory,
        gpus=tuple(
            replace(
                gpu, uuid=GpuUuid(f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{gpu.uuid} {node}')}")
            )
            for gpu in inventory.gpus
        ),
    )
