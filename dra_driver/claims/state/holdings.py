"""What other claims have, or have left, of the GPUs that a claim wants.

In: the ledger (claims/state/ledger.py) and a claim's draft. Out: a rival, what has to be taken back
first, and how much memory claims may use. Callers hold the locks of these GPUs.
"""

from collections.abc import Iterator

from msgspec import Struct

from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.model.record import ClaimRecord, DeviceRecord, MigStep
from dra_driver.claims.state.ledger import Ledger
from dra_driver.devices.device import overlap
from dra_driver.devices.model import GpuUuid
from dra_driver.devices.shares import ConsumedShare, ShareStrategy
from dra_driver.errors import ConflictError
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
    something there (empty if there is a rival); records about the GPUs in `lost` are damaged.
    """

    rival: Rival | None = None
    former: tuple[ClaimUid, ...] = ()
    lost: tuple[GpuUuid, ...] = ()


def neighbours(ledger: Ledger, wanted: ClaimRecord) -> Neighbours:
    """Return the other claims on the GPUs that a record wants.

    Raises ConflictError if only a newer version of this driver can read what one of them has.
    """
    former: set[ClaimUid] = set()
    for gpu in wanted.held_gpus:
        if (newer := ledger.newer_on(gpu, but=wanted.ref.uid)) is not None:
            raise ConflictError(f"{gpu} is held by another claim: {newer}")
        for other in ledger.records_on(gpu):
            if other.ref.uid == wanted.ref.uid:
                continue
            if not ledger.holds(other):
                former.add(other.ref.uid)
                continue
            for entry in wanted.devices:
                if not entry.admin_access and overlap([entry.device], other.held):
                    return Neighbours(rival=Rival(device=entry, holder=other))
            if other.pending:
                former.add(other.ref.uid)
    return Neighbours(former=tuple(sorted(former)), lost=ledger.lost_on(wanted.held_gpus))


def owed(ledger: Ledger, wanted: ClaimRecord) -> tuple[SharingStep, ...]:
    """Return the sharing steps on the GPUs of a record that could not be undone yet."""
    others = (
        other
        for gpu in wanted.held_gpus
        for other in ledger.records_on(gpu)
        if other.ref.uid != wanted.ref.uid and ledger.is_of_this_boot(other)
    )
    return tuple(
        cleanup.of
        for record in (wanted, *others)
        for cleanup in record.pending
        if not isinstance(cleanup.of, MigStep)
    )


def tenants(ledger: Ledger, gpu: GpuUuid) -> list[UseShares]:
    """Return the steps by which claims use shares of a GPU.

    The limits of pods are computed from these steps, so that none is counted twice.
    """
    return [
        step
        for record in ledger.holders_of(gpu)
        for step in share_steps(record)
        if any(device.gpu == gpu for device in step.devices)
    ]


def share_steps(record: ClaimRecord) -> Iterator[UseShares]:
    """Yield the steps by which a claim uses shares."""
    for step in record.steps:
        if isinstance(step, UseShares):
            yield step
