"""The CDI spec of each claim: derived from its record, and written again whenever it is missing.

In: a record. Out: a spec with one CDI device for each device of the claim (cdi/spec.py), kept as a
file (cdi/store.py).
"""

from typing import Protocol

import structlog

from dra_driver.cdi.model import Edits, Spec, SpecDevice
from dra_driver.cdi.spec import KIND, claim_device_name
from dra_driver.claims.devices import DeviceRecord, InventorySource, recorded_gpus, restored
from dra_driver.claims.model import ClaimUid
from dra_driver.claims.record import ClaimRecord
from dra_driver.claims.strategies import Strategies
from dra_driver.devices.kinds import NodeDevice
from dra_driver.errors import DriverError

log = structlog.get_logger()


class NodeEdits(Protocol):
    """Container edits of this node at one moment (cdi/edits_cache.py)."""

    @property
    def common(self) -> Edits:
        """What every container with a GPU gets."""
        ...

    def device(self, one: NodeDevice) -> Edits:
        """Return what a container gets for this device."""
        ...


class EditsSource(Protocol):
    """Finds out what containers get (cdi/edits_cache.py)."""

    def look(self) -> NodeEdits:
        """Return what holds now."""
        ...


class SpecFiles(Protocol):
    """Keeps one CDI spec for each claim (cdi/store.py)."""

    def write(self, uid: str, spec: Spec) -> None:
        """Write the claim's spec, whole or not at all; nothing when it is there already."""
        ...

    def exists(self, uid: str) -> bool:
        """Tell whether the claim has a spec."""
        ...

    def is_peers(self, uid: str) -> bool:
        """Tell whether NVIDIA's driver wrote the claim's spec."""
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


class ClaimSpecs:
    """The CDI specs of this node's claims."""

    def __init__(
        self,
        files: SpecFiles,
        edits: EditsSource,
        inventory: InventorySource,
        strategies: Strategies,
    ) -> None:
        self.files = files
        self._edits = edits
        self._inventory = inventory
        self._strategies = strategies

    def of(self, record: ClaimRecord) -> Spec:
        """Return the spec of a claim, all of whose devices exist.

        Raises:
            DeviceError, TransientError: a device or its files are not there.
        """
        gpus = recorded_gpus(record.devices, self._inventory.current())
        added = self._strategies.edits(record.plans)
        node = self._edits.look()

        def edits(entry: DeviceRecord) -> Edits:
            own = node.device(restored(entry.device, gpus[entry.device.gpu]))
            key = entry.device.key
            return own if key is None or key not in added else own + added[key]

        # The same device can stand in a claim twice, with admin access and without.
        devices = {_device_name(record.ref.uid, entry): entry for entry in record.devices}
        return Spec(
            kind=KIND,
            devices=tuple(
                SpecDevice(name=name, edits=edits(entry)) for name, entry in devices.items()
            ),
            edits=node.common,
        )

    def write(self, record: ClaimRecord) -> None:
        """Write the spec of a claim, unless it stands there as it should.

        One that NVIDIA's driver wrote for a claim that was taken over stays until the claim ends.

        Raises:
            DeviceError, TransientError: a device or its files are not there.
            StateError: the disk refused.
        """
        if record.taken_over and self.files.is_peers(record.ref.uid):
            return
        self.files.write(record.ref.uid, self.of(record))

    def delete(self, uid: ClaimUid) -> None:
        """Delete a claim's spec; one that cannot be deleted is left to a later reconcile."""
        try:
            self.files.delete(uid)
        except DriverError as error:
            log.warning("spec not deleted", claim_uid=uid, reason=str(error))


def _device_name(uid: ClaimUid, entry: DeviceRecord) -> str:
    """Return the name by which the kubelet was told of a device, or the one it has by itself."""
    ours = f"{KIND}="
    told = (one.removeprefix(ours) for one in entry.cdi_device_ids if one.startswith(ours))
    return next(told, claim_device_name(uid, entry.name, entry.share_id))
