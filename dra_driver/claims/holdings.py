"""Which claim has which part of which GPU: what records say, found by GPU through their marks.

In: records (claims/checkpoint.py) and marks (claims/ownership.py). Out: who holds what a claim
wants, and who left something there. The cost depends on how many claims have to do with the GPUs
in question, not on how many there are. Callers hold the locks of these GPUs.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from dra_driver.claims.checkpoint import RecordStore
from dra_driver.claims.devices import DeviceRecord
from dra_driver.claims.model import ClaimUid
from dra_driver.claims.ownership import Ownership
from dra_driver.claims.record import ClaimRecord, RecordState
from dra_driver.devices.kinds import GpuPart, overlap
from dra_driver.devices.model import GpuUuid


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A claim that holds a device which another one wants."""

    device: DeviceRecord
    holder: ClaimRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """What other claims have to do with the GPUs that a claim wants.

    Attributes:
        rival: who holds some of it; None when all is free.
        former: claims of which something may have stayed there; empty with a rival.
    """

    rival: Rival | None = None
    former: frozenset[ClaimUid] = frozenset()


class Holdings:
    """The claims of this node and what they hold, in this boot.

    Attributes:
        records: the record of each claim.
        ownership: the marks of claims on GPUs, and the notes of what was made there.
        boot_id: the kernel's (/proc/sys/kernel/random/boot_id).
    """

    def __init__(self, records: RecordStore, ownership: Ownership, boot_id: str) -> None:
        self.records = records
        self.ownership = ownership
        self.boot_id = boot_id

    def is_of_this_boot(self, record: ClaimRecord) -> bool:
        """Tell whether what the record says of hardware can still be true."""
        return record.boot_id == self.boot_id

    def is_prepared(self, record: ClaimRecord) -> bool:
        """Tell whether the claim is prepared, and in this boot."""
        return self.is_of_this_boot(record) and record.state is RecordState.PREPARED

    def holds(self, record: ClaimRecord) -> bool:
        """Tell whether the record keeps others from its GPUs; after a reboot nothing uses them."""
        return self.is_of_this_boot(record) and record.state is not RecordState.RELEASED

    def neighbours(self, wanted: ClaimRecord) -> Neighbours:
        """Return what other claims have to do with the GPUs that a record wants."""
        others = {uuid: self._others(uuid, wanted.ref.uid) for uuid in wanted.held_gpus}
        for entry in wanted.devices:
            if entry.admin_access:
                continue
            for other in others[entry.device.gpu]:
                if self.holds(other) and overlap([entry.device.part], other.held_parts):
                    return Neighbours(rival=Rival(device=entry, holder=other))
        former = (
            other.ref.uid
            for found in others.values()
            for other in found
            if not self.holds(other) or other.pending
        )
        return Neighbours(former=frozenset(former))

    def holds_any(self, gpus: Iterable[GpuUuid], parts: Collection[GpuPart], but: ClaimUid) -> bool:
        """Tell whether another claim holds one of these parts of these GPUs."""
        return any(
            self.holds(other) and overlap(parts, other.held_parts)
            for uuid in gpus
            for other in self._others(uuid, but)
        )

    def _others(self, gpu: GpuUuid, uid: ClaimUid) -> list[ClaimRecord]:
        """Return the records of other claims with a mark on the GPU."""
        found = []
        for other in self.ownership.holders(gpu):
            if other != uid:
                record = self.records.read(other)
                if record is not None:
                    found.append(record)
                else:
                    self.ownership.unmark(gpu, other)  # left by a crash
        return found
