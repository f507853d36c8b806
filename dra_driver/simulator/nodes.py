"""Simulated nodes: what the driver would find on each of many machines of one profile.

In: a profile. Out: a machine, or the driver's own inventory of it. A machine is made, read once
through NVML as on a real node, and removed; every node is that machine with UUIDs of its own, which
follow from the node's name. Needs no root and no network.
"""

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from dra_driver.devices.model import GpuUuid, Inventory
from dra_driver.devices.session import DriverSession
from dra_driver.simulator.device_nodes import NodeKind
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.instance_types import profile_of
from dra_driver.simulator.machine import Machine
from dra_driver.simulator.profile import Profile, changed, load


def profile_for(name: str, instance_type: str, driver_version: str = "") -> Profile:
    """Return the profile of a name, a file or a cloud's machine type.

    Raises DriverError if there is none.
    """
    found = load(name) if name else profile_of(instance_type)
    return changed(found, {"driver_version": driver_version}) if driver_version else found


@contextmanager
def machine_of(profile: str | Profile) -> Iterator[Machine]:
    """Make a machine of this profile, such as `h100x8`, and remove it at the end.

    Raises DriverError if there is no such profile, or the machine cannot be made.
    """
    options = Options(nodes=NodeKind.PLACEHOLDER, userspace="stand-in")
    with tempfile.TemporaryDirectory(prefix="dra-nodes-") as folder:
        machine = Machine.create(Path(folder) / "gpus", profile, options)
        try:
            yield machine
        finally:
            machine.destroy()


def inventory_of(profile: str | Profile) -> Inventory:
    """Return what the driver finds on a machine of this profile. Raises DriverError."""
    with machine_of(profile) as machine:
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
