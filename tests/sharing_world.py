"""A node for the tests of sharing strategies: simulated GPUs with NVIDIA's real programs on them.

The claims of claims_world.py, with the real strategies: nvidia-smi, NVML, and an MPS directory that
mps_world.py's supervisors serve. Everything is below one directory, so that another process can go
on with it.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import make
from claims_world import Api, World
from dra_driver.claims.model import ClaimRef
from dra_driver.devices.mig import MigInstances
from dra_driver.devices.partitions import partition_name, partitions
from dra_driver.devices.session import DriverSession
from dra_driver.mps.domain import DomainId
from dra_driver.sharing.base import EXCLUSIVE, Sharing
from dra_driver.sharing.exclusive import Exclusive
from dra_driver.sharing.mps import Mps
from dra_driver.sharing.nvidia_smi import NvidiaSmi
from dra_driver.sharing.time_slicing import TimeSlicing
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.layout import Fact
from dra_driver.simulator.machine import Machine
from mps_world import PATIENCE
from mps_world import World as MpsNode

LONG = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
HALF = {
    "strategy": "MPS",
    "mpsConfig": {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "10Gi"},
}
REQUESTS: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "time-slicing": {"ts": LONG},
    "mps": {"mps": HALF},
    "both": {"ts": LONG, "mps": HALF},
}
"""By mode: what the requests of a claim, of one GPU each, are configured as."""


class Node:
    """A node whose driver has all strategies. Two on one directory are two driver processes."""

    def __init__(
        self,
        root: Path,
        *,
        step: Callable[[str], None] = lambda _: None,
        api: Api | None = None,
        ready_seconds: float = PATIENCE,
    ) -> None:
        self.root = root
        self.machine = Machine(root / "driver")
        self.mps = MpsNode(root)
        self.session = DriverSession(
            driver_root=self.machine.driver_root,
            dev=self.machine.dev_root / "dev",
            proc_root=self.machine.proc_root,
            sys_root=self.machine.sys_root,
        )
        self.inventory = self.session.look()
        self.strategies: dict[str, Sharing] = {
            EXCLUSIVE: Exclusive(),
            "TimeSlicing": TimeSlicing(
                NvidiaSmi(self.machine.driver_root, time.monotonic), self.session
            ),
            "MPS": Mps(self.mps.requests, time.monotonic, ready_seconds=ready_seconds),
        }
        self.world = World(
            root / "state",
            *self.inventory.gpus,
            boot_id=self.machine.boot_id,
            step=step,
            api=api,
            strategies=self.strategies,
            mig=MigInstances(self.session.mig),
        )

    @classmethod
    def create(cls, root: Path, profile: str = "h100x8") -> "Node":
        """Make one with NVIDIA's own user-space files; SetupError without."""
        Machine.create(root / "driver", profile, Options(userspace="real"))
        return cls(root)

    def close(self) -> None:
        self.world.close()
        self.session.close()

    def uuid(self, minor: int) -> str:
        return next(gpu.uuid for gpu in self.inventory.gpus if gpu.minor == minor)

    def claim(
        self, requests: Mapping[str, dict[str, Any] | None], first: int = 0, name: str = "claim"
    ) -> ClaimRef:
        """Allocate a claim: one GPU for each request, from `first` on, each under its config."""
        configs = [
            make.config(request, sharing=sharing)
            for request, sharing in requests.items()
            if sharing is not None
        ]
        devices = [f"gpu-{first + number}" for number in range(len(requests))]
        ref = self.world.api.add(*devices, uid=f"uid-{name}", name=name, configs=configs)
        for result, request in zip(self.world.api.results(ref), requests, strict=True):
            result["request"] = request
        return ref

    def mig_claim(
        self, *starts: int, name: str = "claim", sharing: Mapping[str, Any] = HALF
    ) -> ClaimRef:
        """Allocate a claim: a small MIG device at each start on the first GPU, all shared so."""
        gpu = self.inventory.gpus[0]
        names = [
            partition_name(gpu, place)
            for place in partitions(gpu)
            if place.profile.name == "1g.10gb" and place.placement.start in starts
        ]
        config = make.config(kind="MigDeviceConfig", sharing=sharing)
        return self.world.api.add(*names, uid=f"uid-{name}", name=name, configs=[config])

    def instances(self) -> int:
        """How many MIG devices are on the first GPU."""
        return len(self.machine.mig_devices(self.inventory.gpus[0].uuid))

    def prepare(self, ref: ClaimRef) -> None:
        self.world.prepare(ref, PATIENCE)

    def unprepare(self, ref: ClaimRef) -> None:
        self.world.unprepare(ref, PATIENCE)

    def env(self, ref: ClaimRef, device: str) -> dict[str, str]:
        """The environment a container of this device gets, without what all containers get."""
        found = self._edits(ref, device).get("env", [])
        return dict(entry.split("=", 1) for entry in found)

    def mounts(self, ref: ClaimRef, device: str) -> dict[str, str]:
        """Container path to host path of the mounts for this device."""
        found = self._edits(ref, device).get("mounts", [])
        return {mount["containerPath"]: mount["hostPath"] for mount in found}

    def _edits(self, ref: ClaimRef, device: str) -> dict[str, Any]:
        devices = self.world.spec(ref)["devices"]
        (edits,) = [
            one["containerEdits"] for one in devices if one["name"] == f"{ref.uid}-{device}"
        ]
        found: dict[str, Any] = edits
        return found

    def time_slices(self) -> dict[int, int]:
        """The time-slices that are not the default, by minor number."""
        return {s.gpu.minor: s.time_slice for s in self.machine.status() if s.time_slice}

    def modes(self) -> dict[int, int]:
        """The compute modes that are not DEFAULT, by minor number."""
        return {s.gpu.minor: s.compute_mode for s in self.machine.status() if s.compute_mode}

    def set_mode(self, minor: int, mode: int) -> None:
        self.machine.set_fact(self.uuid(minor), Fact.COMPUTE_MODE, mode)

    def cleanups(self, ref: ClaimRef) -> list[tuple[str, str]]:
        """What could not be taken back of a claim: strategy and reason."""
        record = self.world.claims.records.read(ref.uid)
        cleanups = record.pending if record else ()
        return [(cleanup.name, cleanup.reason) for cleanup in cleanups]

    def left(self) -> list[str]:
        """What claims have left: files, time-slices, compute modes, and of MPS anything at all."""
        found = self.world.left()
        found += [f"time-slice of gpu-{minor}" for minor in self.time_slices()]
        found += [f"compute mode of gpu-{minor}" for minor in self.modes()]
        found += [f"mps domain {domain}" for domain in sorted(self.mps.requests.list())]
        for folder in self.mps.files.domains_folder.glob("*"):
            found += [f"mps folder {folder.name}"]
        return found

    def ask(self, ref: ClaimRef, command: str) -> list[str]:
        """Ask the daemon of a claim's domain, the way a person would."""
        return self.mps.control.ask(self.mps.files.paths(DomainId(ref.uid)), [command])
