"""Which claim has which part of which GPU: what the records say, found by marks on each GPU.

In: records (claims/state/records.py) and marks (claims/state/ownership.py). Out: which claims hold
what another one wants, which have left something there, and how much memory claims may use. The
cost depends on the number of claims on the GPUs in question, not on the number of all claims.
Callers hold the locks of these GPUs.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.model.record import (
    ClaimRecord,
    DeviceRecord,
    MakeMigDevices,
    MigStep,
    RecordState,
)
from dra_driver.claims.state.ownership import Ownership
from dra_driver.claims.state.records import RecordStore
from dra_driver.devices.device import Device, overlap
from dra_driver.devices.model import GpuUuid, MigSlot
from dra_driver.devices.shares import ConsumedShare, ShareStrategy
from dra_driver.errors import ConflictError, StateError, VersionError
from dra_driver.sharing.steps import SharingStep, UseShares


class Rival(Struct, frozen=True, kw_only=True):
    """A claim that holds a device that another claim wants."""

    device: DeviceRecord
    holder: ClaimRecord

    @property
    def other_strategy(self) -> ShareStrategy | None:
        """The holder's strategy, if both claims could share the device but strategies differ."""
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
    """Other claims on the GPUs that a claim wants.

    `rival` holds some of what is wanted; None if all is free. `former` claims may have left
    something there (empty if there is a rival). On `lost` GPUs something may be set for a claim
    whose record is lost, possibly for the claim itself.
    """

    rival: Rival | None = None
    former: frozenset[ClaimUid] = frozenset()
    lost: frozenset[GpuUuid] = frozenset()


def open_holdings(directory: Path, *, boot_id: str, version: str) -> "Holdings":
    """Return the holdings below a directory, whose folders are made once the disk is writable."""
    return Holdings(RecordStore(directory, version), Ownership(directory, boot_id), boot_id)


class Holdings:
    """The claims of this node and what they hold, in this boot.

    Methods that read records raise StateError if they cannot be read. `boot_id` is that of the
    kernel (/proc/sys/kernel/random/boot_id).
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

    def prepared(self) -> Iterator[ClaimRecord]:
        """Yield the readable records of the claims that are prepared in this boot."""
        return filter(self.is_prepared, self.records.readable())

    def holds(self, record: ClaimRecord) -> bool:
        """Tell whether the record keeps others from its GPUs; after a reboot nothing uses them."""
        return self.is_of_this_boot(record) and record.state is not RecordState.RELEASED

    def still_holds(self, record: ClaimRecord) -> bool:
        """Tell whether the claim has been prepared without interruption since a record was read.

        If it was prepared again in between, the disk has another record, even with equal content.
        """
        try:
            return self.is_prepared(record) and self.records.peek(record.ref.uid) is record
        except StateError:
            return False

    def are_there(self) -> bool:
        """Tell whether any claim of this node holds anything, as far as this version can read."""
        # Readable records come first: others matter only if no readable one holds anything.
        return any(map(self.holds, self.records.readable())) or any(
            map(self.holds, self.records.all())
        )

    def neighbours(self, wanted: ClaimRecord) -> Neighbours:
        """Return the other claims on the GPUs that a record wants.

        Raises ConflictError if only a newer version of this driver can read what one of them has.
        """
        others = {uuid: self._others(uuid, wanted.ref.uid) for uuid in wanted.held_gpus}
        for gpu, there in others.items():
            if there.newer is not None:
                raise ConflictError(f"{gpu} is held by another claim: {there.newer}")
        for entry in wanted.devices:
            if entry.admin_access:
                continue
            device = entry.device
            for other in others[device.gpu].records:
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
        """Return the sharing steps on the GPUs of a record that could not be undone yet."""
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
        """Tell whether another claim holds any part of these devices, which are on these GPUs."""
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
        """Return the readable records of the claims that hold something of a GPU."""
        return [record for record in self._others(gpu).records if self.holds(record)]

    def heir(self, slot: MigSlot, uid: ClaimUid) -> ClaimUid | None:
        """Return a claim other than `uid` that takes over the MIG device made at a place.

        There is one if NVIDIA's driver made the device for several claims with shares of it.
        """
        for record in self._others(slot.gpu, uid).records:
            if self.holds(record) and slot in made_for(record):
                return record.ref.uid
        return None

    def users_of(self, gpu: GpuUuid) -> Sequence[ClaimRecord]:
        """Return the records of a GPU's claims, including those that a reboot interrupted."""
        users = self._others(gpu).records
        return [user for user in users if user.state is not RecordState.RELEASED]

    def tenants(self, gpu: GpuUuid) -> list[UseShares]:
        """Return the steps by which claims use shares of a GPU.

        The limits of pods are computed from these steps, so that none is counted twice.
        """
        return [
            step
            for record in self.holders_of(gpu)
            for step in share_steps(record)
            if any(device.gpu == gpu for device in step.devices)
        ]

    def _others(self, gpu: GpuUuid, uid: ClaimUid | None = None) -> "_Others":
        """Return the claims other than `uid` that have a mark on the GPU."""
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

    `traced` claims have no readable record, after a crash or because it is damaged. `newer` says
    why a record cannot be read that a newer version of this driver wrote. `has_lost`: one of the
    claims, or the one that asks, had a record that is damaged.
    """

    records: Sequence[ClaimRecord]
    traced: Sequence[ClaimUid]
    newer: VersionError | None
    has_lost: bool


def share_steps(record: ClaimRecord) -> Iterator[UseShares]:
    """Yield the steps by which a claim uses shares."""
    for step in record.steps:
        if isinstance(step, UseShares):
            yield step


def made_for(record: ClaimRecord) -> list[MigSlot]:
    """Return the places where MIG devices were made for a claim, or are being made."""
    steps = (step for step in record.steps if isinstance(step, MakeMigDevices))
    return [place.slot for step in steps for place in step.places]
