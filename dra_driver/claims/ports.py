"""What claims/ needs from the rest of the driver, as protocols."""

from collections.abc import Mapping
from typing import Any, Protocol

from dra_driver.cdi.model import Edits, Spec
from dra_driver.devices.model import (
    Gpu,
    GpuUuid,
    Instance,
    Inventory,
    MigDevice,
    MigMode,
    MigSlot,
    Partition,
)


class ClaimReader(Protocol):
    """Reads ResourceClaims from the API server (kube/client.py)."""

    def get_claim(self, namespace: str, name: str, *, timeout: float) -> Mapping[str, Any]:
        """Return one resource.k8s.io/v1 ResourceClaim; give up after `timeout` seconds.

        Raises:
            NotFoundError: there is no such claim.
            TransientError: the API server cannot be reached or is too busy.
            DriverError: anything else it said.
        """
        ...


class InventorySource(Protocol):
    """Knows the GPUs of this node (devices/watcher.py)."""

    def current(self) -> Inventory:
        """Return what the latest look found, without waiting."""
        ...


class NodeEdits(Protocol):
    """Container edits of this node at one moment (cdi/edits_cache.py)."""

    @property
    def common(self) -> Edits:
        """What every container with a GPU gets."""
        ...

    def gpu(self, gpu: Gpu) -> Edits:
        """Return what a container gets for this GPU."""
        ...

    def mig(self, gpu: Gpu, device: MigDevice) -> Edits:
        """Return what a container gets for a MIG device of this GPU."""
        ...


class EditsSource(Protocol):
    """Finds out what containers get (cdi/edits_cache.py)."""

    def look(self) -> NodeEdits:
        """Return what holds now."""
        ...


class MigDevices(Protocol):
    """Makes and destroys MIG devices (devices/mig.py). Each may be repeated.

    All raise DeviceError where NVML refuses, and TransientError for what may pass.
    """

    def mode(self, gpu: GpuUuid) -> MigMode:
        """Return the MIG mode that a GPU is in now."""
        ...

    def set_mode(self, gpu: GpuUuid, mode: MigMode) -> None:
        """Turn MIG mode on or off. Raises ConflictError: off, while instances are there."""
        ...

    def find(self, slot: MigSlot) -> Instance | None:
        """Return what is at a place now."""
        ...

    def make(self, partition: Partition) -> MigDevice:
        """Make a MIG device, or find it made; wholly or not at all."""
        ...

    def destroy(self, slot: MigSlot) -> None:
        """Destroy what is at a place; nothing there is fine."""
        ...


class SpecFiles(Protocol):
    """Keeps one CDI spec for each claim (cdi/store.py)."""

    def write(self, uid: str, spec: Spec) -> None:
        """Write the claim's spec, whole or not at all; nothing when it is there already."""
        ...

    def exists(self, uid: str) -> bool:
        """Tell whether the claim has a spec."""
        ...

    def delete(self, uid: str) -> None:
        """Remove the claim's spec; none is fine."""
        ...

    def uids(self) -> set[str]:
        """Return the claims that have a spec."""
        ...

    def delete_leftovers(self) -> int:
        """Remove what a killed process was writing; return how many files that were."""
        ...
