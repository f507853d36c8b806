"""The CDI spec of each claim, made again if it is missing (kubernetes/kubernetes#141433).

In: its record. Out: a spec with one CDI device for each device of the claim (cdi/model.py), kept as
a file (cdi/store.py), and the files with device metadata that it mounts
(claims/prepare/device_metadata.py). These are written before the spec and deleted after it.

Files of the GPU driver may be replaced under prepared claims. Then their specs are written again,
so that a container that restarts still starts. While a package manager works, some files are
missing for a moment: a spec with more files stays until nothing has changed for a minute.
"""

from collections.abc import Mapping

import structlog
from msgspec import Struct
from msgspec.structs import replace

from dra_driver.cdi.edits_cache import EditsCache, missing_files
from dra_driver.cdi.model import KIND, Edits, Spec, claim_device_name
from dra_driver.cdi.store import SpecStore
from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.model.record import ClaimRecord, DeviceRecord
from dra_driver.claims.prepare.allocation import recorded_gpus
from dra_driver.claims.prepare.device_metadata import Document, MetadataFiles, documents
from dra_driver.devices.device import DeviceKey, NodeDevice, Vfio
from dra_driver.devices.model import Gpu, GpuUuid, Inventory, InventorySource
from dra_driver.devices.nvlink import joined
from dra_driver.errors import DriverError
from dra_driver.host.worker import LogOnce

log = structlog.get_logger()

SETTLED_LOOKS = 6
"""After so many looks that found the same files, these are all that there are."""


class ClaimFiles(Struct, frozen=True, kw_only=True):
    """The files of one claim: its CDI spec, and the metadata that it mounts.

    `documents` is the metadata by request, with `islands`, the GPUs that NVLink joins; None if its
    files are as they should be, or containers get none.
    """

    record: ClaimRecord
    spec: Spec
    documents: Mapping[str, Document] | None
    islands: Mapping[GpuUuid, GpuUuid]


class ClaimSpecs:
    """The CDI specs of this node's claims."""

    def __init__(
        self,
        files: SpecStore,
        metadata: MetadataFiles,
        edits: EditsCache,
        inventory: InventorySource,
    ) -> None:
        self.files = files
        self._metadata = metadata
        self._edits = edits
        self._inventory = inventory
        self._found: Edits | None = None
        self._found_again = 0
        self._once = LogOnce()
        self._islands: tuple[Inventory, Mapping[GpuUuid, GpuUuid]] | None = None
        self._described: dict[ClaimUid, tuple[ClaimRecord, object]] = {}

    def of(
        self,
        record: ClaimRecord,
        gpus: Mapping[GpuUuid, Gpu],
        added: Mapping[DeviceKey, Edits],
    ) -> ClaimFiles:
        """Return the files of a claim, all of whose devices exist, and are on these GPUs.

        `added` is what containers get for the steps of the claim. Raises DeviceError or
        TransientError if a device or its files are missing.
        """
        node = None if _is_for_machine(record) else self._edits.look()
        mounts = self._metadata.mounts(record)
        devices: dict[str, Edits] = {}
        # A claim can have the same device twice, with admin access and without.
        for entry in {entry.allocation_id: entry for entry in record.devices}.values():
            device = NodeDevice(gpu=gpus[entry.device.gpu], device=entry.device)
            own = node.device(device) if node else Edits()
            if (step_edits := added.get(entry.device.key)) is not None:
                own += step_edits
            own = replace(own, mounts=(*own.mounts, *mounts.get(entry.allocation_id, ())))
            devices[_device_name(record.ref.uid, entry)] = own
        spec = Spec(devices=devices, edits=node.common if node else Edits())
        inventory = self._inventory.current()
        if (known := self._islands) is None or known[0] is not inventory:
            known = self._islands = (inventory, joined(inventory.gpus))
        before = self._described.get(record.ref.uid)
        is_same = before is not None and before[0] is record and before[1] is known[1]
        told = None
        if self._metadata.is_on and not (is_same and self._metadata.are_as_left(record.ref.uid)):
            told = documents(record, gpus, inventory, known[1])
        return ClaimFiles(record=record, spec=spec, documents=told, islands=known[1])

    def write(self, files: ClaimFiles) -> None:
        """Write the device metadata of a claim, then its spec, which mounts the metadata.

        Raises StateError if the disk refuses.
        """
        uid = files.record.ref.uid
        if files.documents is not None:
            self._metadata.write(uid, files.documents)
            self._described[uid] = files.record, files.islands
        self.files.write(uid, files.spec)

    def restore(self, record: ClaimRecord, added: Mapping[DeviceKey, Edits]) -> None:
        """Restore a claim's spec and files. Raises as `of` and `write` do."""
        gpus = recorded_gpus(record.devices, self._inventory.current())
        files, former = self.of(record, gpus, added), self.files.written.get(record.ref.uid)
        spec = files.spec
        if former is not None and not self._replaces(spec.edits, former.edits):
            spec = replace(spec, edits=former.edits)
        self.write(replace(files, spec=spec))
        if former is not None and former.edits != spec.edits:
            log.info("cdi spec follows the gpu driver's files", claim=str(record.ref))

    def outdated(self) -> set[ClaimUid]:
        """Return the claims whose specs name other files of the GPU driver than there are now.

        To be asked repeatedly. It costs a look at each file, whatever the number of claims.
        """
        specs = self.files.written.copy()
        # A virtual machine's claim has no files of the GPU driver.
        written = {ClaimUid(uid): spec.edits for uid, spec in specs.items() if spec.edits.mounts}
        if not written:
            return set()
        try:
            now = self._edits.look_at_files()
        except DriverError as error:
            self._found = None
            if self._once.is_new(str(error)):
                log.warning("cdi specs not compared with the gpu driver", reason=str(error))
            return set()
        self._found_again = self._found_again + 1 if now.common == self._found else 0
        self._found = now.common
        others = {uid: edits for uid, edits in written.items() if edits != now.common}
        kept = {uid for uid, former in others.items() if not self._replaces(now.common, former)}
        missing = missing_files(others[min(kept)], now.roots) if kept else []
        if not missing:
            self._once.forget()
        elif self._once.is_new(missing[0]):
            advice = "complete the driver's upgrade; the specs follow within a minute"
            log.warning("files of the gpu driver are missing", missing=missing[:3], advice=advice)
        return others.keys() - kept

    def _replaces(self, edits: Edits, former: Edits) -> bool:
        """Tell whether the files in edits, found at the last look, are all that are to come."""
        is_settled = edits == self._found and self._found_again >= SETTLED_LOOKS
        return is_settled or len(edits.mounts) >= len(former.mounts)

    def complete(self) -> set[ClaimUid]:
        """Return the claims for which all files exist that containers need."""
        uids = set(map(ClaimUid, self.files.uids()))
        return uids & self._metadata.complete() if self._metadata.is_on else uids

    def uids(self) -> set[str]:
        """Return the claims for which any file exists."""
        return self.files.uids() | self._metadata.uids()

    def delete(self, uid: ClaimUid) -> None:
        """Delete a claim's spec and what it mounts; a later reconcile deletes what is left."""
        self._described.pop(uid, None)
        try:
            self.files.delete(uid)
            self._metadata.delete(uid)
        except DriverError as error:
            log.warning("spec not deleted", claim_uid=uid, reason=str(error))


def _is_for_machine(record: ClaimRecord) -> bool:
    """Tell whether a virtual machine has all devices: it gets no files of the GPU driver."""
    return all(isinstance(entry.device.base, Vfio) for entry in record.devices)


def _device_name(uid: ClaimUid, entry: DeviceRecord) -> str:
    """Return the name of a device in its CDI ids, as the kubelet knows it; else the usual name."""
    ours = f"{KIND}="
    told = (cdi_id.removeprefix(ours) for cdi_id in entry.cdi_device_ids if cdi_id.startswith(ours))
    return next(told, claim_device_name(uid, entry.name, entry.share_id))
