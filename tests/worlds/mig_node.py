"""A node for the tests of claims on MIG devices: simulated GPUs, and NVML as it really answers.

The MIG calls are those of the driver's own NVML session. Everything is below one directory, so
that another process can go on with it, or die in it.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dra_driver.claims.model import ClaimRef
from dra_driver.devices.mig import MigInstances
from dra_driver.devices.model import Gpu
from dra_driver.devices.partitions import partition_name, partitions
from dra_driver.devices.session import DriverSession
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.machine import Machine
from dra_driver.simulator.mig import SimulatedMig
from worlds.api import ClaimApi
from worlds.driver import Driver


class MigNode:
    """A node with GPUs that know MIG. Two on one directory are two driver processes."""

    def __init__(
        self,
        root: Path,
        *,
        api: ClaimApi | None = None,
        step: Callable[[str], None] = lambda _: None,
        survives_reboot: bool = False,
    ) -> None:
        self.root = root
        self.is_closed = False
        self.machine = Machine(root / "driver")
        self.session = DriverSession(
            driver_root=self.machine.driver_root,
            dev=self.machine.dev_root / "dev",
            proc_root=self.machine.proc_root,
            sys_root=self.machine.sys_root,
            made_here=lambda: (
                self.driver.claims.ownership.made().keys() if self.driver else frozenset()
            ),
        )
        self.driver: Driver = None  # type: ignore[assignment] # looked for GPUs before there is one
        self.inventory = self.session.look()
        self.driver = Driver(
            root / "state",
            *self.inventory.gpus,
            boot_id=self.machine.boot_id,
            api=api,
            step=step,
            survives_reboot=survives_reboot,
            mig=MigInstances(self.session.mig),
        )

    @classmethod
    def create(cls, root: Path, profile: str = "h100x8") -> "MigNode":
        Machine.create(root / "driver", profile, Options(userspace="stand-in"))
        return cls(root)

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.driver.close()
            self.session.close()

    def restarted(self, **changes: Any) -> "MigNode":
        """The driver after its process has ended: same files, same API server."""
        self.close()
        node = MigNode(self.root, api=self.driver.api, **changes)
        node.driver.claims.leftovers.delete_halves()
        return node

    def look(self) -> None:
        """Let the driver see what there is now."""
        self.inventory = self.driver.gpus.inventory = self.session.look()

    def gpu(self, number: int = 0) -> Gpu:
        return self.inventory.gpus[number]

    def name(self, profile: str, start: int, gpu: int = 0) -> str:
        """The device name of a profile at a place on a GPU."""
        (found,) = [
            partition_name(self.gpu(gpu), one)
            for one in partitions(self.gpu(gpu))
            if (one.profile.name, one.placement.start) == (profile, start)
        ]
        return found

    def whole(self, gpu: int = 0) -> str:
        return f"gpu-{self.gpu(gpu).minor}"

    def claim(self, *devices: str, name: str = "claim", configs: Iterable[Any] = ()) -> ClaimRef:
        return self.driver.api.add(*devices, uid=f"uid-{name}", name=name, configs=list(configs))

    def there(self, gpu: int = 0) -> list[SimulatedMig]:
        """The MIG devices that are on a GPU now."""
        return self.machine.mig_devices(self.gpu(gpu).uuid)

    def shapes(self, gpu: int = 0) -> list[str]:
        """The MIG devices that are on a GPU now, as `profile@start`."""
        return sorted(f"{one.profile}@{one.start}" for one in self.there(gpu))

    def mode(self, gpu: int = 0) -> int | None:
        """The MIG mode a GPU is in: 0 or 1."""
        modes = {one.gpu.uuid: one.mig_mode for one in self.machine.status()}
        return modes[self.gpu(gpu).uuid]

    def left(self) -> list[str]:
        """What claims have left: files, instances, modes."""
        found = self.driver.left()
        notes = self.root / "state" / "plugin" / "mig"
        found += [str(path.name) for path in notes.rglob("*") if path.is_file()]
        for number, gpu in enumerate(self.inventory.gpus):
            found += [f"{shape} on {gpu.minor}" for shape in self.shapes(number)]
            found += [f"mode of {gpu.minor}"] if self.mode(number) else []
        return found
