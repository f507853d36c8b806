"""Which claim has which part of which GPU: what records say, found by GPU through their marks.

In: records (claims/state/records.py) and marks (claims/state/ownership.py). Out: who holds what a
claim wants, who left something there, and what claims may have of memory. The cost depends on how
many claims have to do with the GPUs in question, not on how many there are. Callers hold the locks
of these GPUs.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.model.record import ClaimRecord, DeviceRecord, RecordState
from dra_driver.claims.model.steps import MakeMigDevices, MigStep
from dra_driver.claims.state.ownership import Ownership
from dra_driver.claims.state.records import RecordStore
from dra_driver.devices.device import Device, Mig, Whole, overlap
from dra_driver.devices.model import GpuUuid, Inventory, MigSlot
from dra_driver.devices.shares import ConsumedShare, ShareStrategy
from dra_driver.errors import ConflictError, StateError, VersionError
from dra_driver.sharing.steps import MemoryPart, SharingStep, UseShares
from dra_driver.slices.offer.mig import Held, MigOffer, MigSource


class Rival(Struct, frozen=True, kw_only=True):
    """A claim that holds a device which another one wants."""

    device: DeviceRecord
    holder: ClaimRecord

    @property
    def other_strategy(self) -> ShareStrategy | None:
        """How the holder uses a device that both could share, if they used it in the same way."""
        wanted = self.device.device
        for held in self.holder.held:
            if (
                held.place == wanted.place
                and isinstance(wanted.share, ConsumedShare)
                and isinstance(held.share, ConsumedShare)
                and held.share.strategy is not wanted.share.strategy
            ):
                return held.share.strategy
        return None


class Neighbours(Struct, frozen=True, kw_only=True):
    """What other claims have to do with the GPUs that a claim wants.

    `rival` holds some of it, None when all is free; of `former` claims something may have stayed
    there (empty with a rival). `lost` are GPUs on which something may be set for a claim whose
    record is lost, this one among them.
    """

    rival: Rival | None = None
    former: frozenset[ClaimUid] = frozenset()
    lost: frozenset[GpuUuid] = frozenset()


def open_holdings(directory: Path, *, boot_id: str, version: str) -> "Holdings":
    """Return the holdings below a directory, made as soon as its disk can be written."""
    return Holdings(RecordStore(directory, version), Ownership(directory, boot_id), boot_id)


class Holdings:
    """The claims of this node and what they hold, in this boot.

    What reads records raises StateError if they cannot be read. `boot_id` is the kernel's
    (/proc/sys/kernel/random/boot_id).
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

    def still_holds(self, record: ClaimRecord) -> bool:
        """Tell whether the claim is prepared as it was when a record was read, and since then.

        Prepared again in between, it has another record on disk, even if that says the same.
        """
        try:
            return self.is_prepared(record) and self.records.peek(record.ref.uid) is record
        except StateError:
            return False

    def are_there(self) -> bool:
        """Tell whether a claim of this node holds anything, as far as this version can read."""
        # That a record cannot be read counts only if no other one does.
        return any(map(self.holds, self.records.readable())) or any(
            map(self.holds, self.records.all())
        )

    def neighbours(self, wanted: ClaimRecord) -> Neighbours:
        """Return what other claims have to do with the GPUs that a record wants.

        Raises ConflictError if only a newer version of this driver knows what one of them has.
        """
        others = {uuid: self._others(uuid, wanted.ref.uid) for uuid in wanted.held_gpus}
        for gpu, there in others.items():
            if there.newer is not None:
                raise ConflictError(f"{gpu} is held by another claim: {there.newer}")
        for entry in wanted.devices:
            if entry.admin_access:
                continue
            device = entry.device
            for other in (user for gpu in device.served for user in others[gpu].records):
                if self.holds(other) and overlap([device], other.held):
                    return Neighbours(rival=Rival(device=entry, holder=other))
        former = {
            other.ref.uid
            for there in others.values()
            for other in there.records
            if not self.holds(other) or other.pending
        }
        traced = {uid for there in others.values() for uid in there.traced}
        lost = {gpu for gpu, there in others.items() if there.has_lost}
        return Neighbours(former=frozenset(former | traced), lost=frozenset(lost))

    def owed(self, wanted: ClaimRecord) -> tuple[SharingStep, ...]:
        """Return what shares the GPUs that a record wants, and could not be undone yet."""
        others = (
            other
            for uuid in wanted.held_gpus
            for other in self._others(uuid, wanted.ref.uid).records
            if self.is_of_this_boot(other)
        )
        return tuple(
            cleanup.of
            for record in (wanted, *others)
            for cleanup in record.pending
            if not isinstance(cleanup.of, MigStep)
        )

    def holds_any(
        self, gpus: Iterable[GpuUuid], devices: Collection[Device], but: ClaimUid
    ) -> bool:
        """Tell whether another claim holds one of these devices, or any of it, of these GPUs."""
        for uuid in gpus:
            there = self._others(uuid, but)
            if there.newer is not None:
                return True
            if any(
                self.holds(record) and overlap(devices, record.held) for record in there.records
            ):
                return True
        return False

    def holders_of(self, gpu: GpuUuid) -> Sequence[ClaimRecord]:
        """Return the records of the claims that hold something of a GPU, as far as known here."""
        return [record for record in self._others(gpu).records if self.holds(record)]

    def heir(self, slot: MigSlot, uid: ClaimUid) -> ClaimUid | None:
        """Return a claim other than `uid` with which the MIG device made at a place is to go.

        There is one where several had a share of it that NVIDIA's driver had made for them.
        """
        for record in self._others(slot.gpu, uid).records:
            if self.holds(record) and slot in made_for(record):
                return record.ref.uid
        return None

    def users_of(self, gpu: GpuUuid) -> Sequence[ClaimRecord]:
        """Return the records of a GPU's claims, also of those that a reboot has interrupted."""
        users = self._others(gpu).records
        return [user for user in users if user.state is not RecordState.RELEASED]

    def tenants(self, gpu: GpuUuid) -> list[MemoryPart]:
        """Return what the claims that have shares of a GPU may have of memory.

        Every limit of a pod is made up from these, so that none has to be counted twice.
        """
        return [
            step.memory
            for record in self.holders_of(gpu)
            for step in share_steps(record)
            if any(device.gpu == gpu for device in step.devices)
        ]

    def parts_of_pod(self, pod: str) -> list[MemoryPart]:
        """Return what all claims of a pod that control groups limit may have of memory."""
        return [
            part
            for record in filter(self.holds, self.records.all())
            for part in memory_parts(record)
            if part.pod == pod
        ]

    def _others(self, gpu: GpuUuid, uid: ClaimUid | None = None) -> "_Others":
        """Return the claims with a mark on the GPU, but for this one."""
        records: list[ClaimRecord] = []
        traced: list[ClaimUid] = []
        newer: VersionError | None = None
        has_lost = False
        for other in self.ownership.holders(gpu):
            try:
                record = self.records.peek(other)
            except VersionError as error:
                if other != uid:
                    newer = error
                continue
            if record is None:
                has_lost |= self.records.has_lost(other)
            if other == uid:
                continue
            if record is None:
                traced.append(other)
            else:
                records.append(record)
        return _Others(records=records, traced=traced, newer=newer, has_lost=has_lost)


class _Others(Struct, frozen=True, kw_only=True):
    """The claims with a mark on a GPU.

    `traced` have no record, after a crash, or a damaged one. `newer` says why one cannot be read,
    if a newer version of this driver prepared it. `has_lost`: one, or the claim that asks, had a
    record that is damaged.
    """

    records: Sequence[ClaimRecord]
    traced: Sequence[ClaimUid]
    newer: VersionError | None
    has_lost: bool


def share_steps(record: ClaimRecord) -> Iterator[UseShares]:
    """Yield how a claim uses shares."""
    for step in record.steps:
        if isinstance(step, UseShares):
            yield step


def memory_parts(record: ClaimRecord) -> Iterator[MemoryPart]:
    """Yield what a claim may have of memory with its shares."""
    for step in share_steps(record):
        yield step.memory


def made_for(record: ClaimRecord) -> list[MigSlot]:
    """Return where MIG devices were made for a claim, or are being made."""
    steps = (step for step in record.steps if isinstance(step, MakeMigDevices))
    return [place.slot for step in steps for place in step.places]


class HeldDevices:
    """Keeps on offer what claims have of GPUs, while others change MIG modes, or settings change.

    The scheduler takes an allocated device into account only as long as it is published. Devices
    with admin access keep nobody from anything. `keeps_any` tells whether something was offered
    last for claims alone.
    """

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self.keeps_any = False

    def beside(self, offer: MigOffer, inventory: Inventory) -> MigOffer:
        """Return what is offered of an inventory's GPUs, with what claims have of them."""
        if offer.source is MigSource.AUTO:  # no other one follows the modes of GPUs
            held = {gpu.uuid: self._held(gpu.uuid) for gpu in inventory.gpus if gpu.mig}
            offer = replace(offer, held=held)
        self.keeps_any = any(
            offer.keeps_whole(gpu) or offer.keeps_parts(gpu) for gpu in inventory.gpus
        )
        return offer

    def _held(self, gpu: GpuUuid) -> Held:
        bases = [
            entry.device.base
            for record in self._holdings.users_of(gpu)
            for entry in record.devices
            if entry.device.gpu == gpu and not entry.admin_access
        ]
        return Held(
            whole=any(isinstance(base, Whole) for base in bases),
            slots=frozenset(base.slot for base in bases if isinstance(base, Mig)),
        )
