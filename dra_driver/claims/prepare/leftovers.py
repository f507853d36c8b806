"""Finds what a crash left of claims without a record, and takes it back.

In: CDI specs, marks and notes on disk, and what lives by itself, such as MPS daemons. None of these
proves that a claim exists: only a record does (claims/model/record.py). Callers hold the locks of
the claim and, except in `take_back`, of the GPUs where something is taken back.
"""

from collections.abc import Callable, Iterable, Mapping

import structlog

from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.model.record import MIG, ClaimRecord
from dra_driver.claims.prepare.mig import MigDevices
from dra_driver.claims.prepare.specs import ClaimSpecs
from dra_driver.claims.prepare.steps import NO_WAIT, Steps
from dra_driver.claims.state.holdings import Holdings
from dra_driver.claims.state.locks import NodeLocks
from dra_driver.devices.device import Vfio, Whole
from dra_driver.devices.model import GpuUuid, MigSlot
from dra_driver.errors import DriverError, TransientError

log = structlog.get_logger()


class Leftovers:
    """What claims without a record have left on this node.

    `on_failed` is called with the name of what cannot be taken back, at each attempt.
    """

    def __init__(
        self,
        holdings: Holdings,
        specs: ClaimSpecs,
        steps: Steps,
        mig: MigDevices,
        on_failed: Callable[[str], None],
    ) -> None:
        self._records = holdings.records
        self._ownership = holdings.ownership
        self._specs = specs
        self._steps = steps
        self._mig = mig
        self._on_failed = on_failed

    def traced(self) -> set[ClaimUid]:
        """Return the claims of which anything is there: a record, file, mark, note or daemon."""
        others = self._specs.traced() | self._steps.claims()
        return (
            self._records.uids()
            | self._ownership.marked()
            | set(self._ownership.made().values())
            | set(map(ClaimUid, others))
        )

    def made_for(self, uid: ClaimUid) -> dict[MigSlot, ClaimUid]:
        """Return the MIG devices that were made for a claim; `sweep` needs their GPUs' locks."""
        return {slot: owner for slot, owner in self._ownership.made().items() if owner == uid}

    def take_back(self, uid: ClaimUid, locks: NodeLocks, deadline: float) -> bool:
        """Take back all that a claim without a record has left; return whether all of it is gone.

        The caller holds the claim's lock. Raises StateError if its files cannot be deleted, and
        ConflictError if another call has a GPU until the deadline.
        """
        self._specs.delete(uid)
        self._records.delete(uid)
        if uid in self._steps.claims():
            log.warning("claim without a record undone", claim_uid=uid)
            self._steps.sweep(uid, deadline)  # which waits for daemons, outside of the GPUs' locks
        made = self.made_for(uid)
        with locks.gpus(gpus_of(made), deadline):
            return self.sweep(uid, made)

    def sweep(self, uid: ClaimUid, made: Mapping[MigSlot, ClaimUid]) -> bool:
        """Take back what is there for a claim without a record; return whether all of it is gone.

        `made` are the MIG devices that were made for it; it is fine if one is gone by now. This
        waits for no daemon. Marks keep the claim's GPUs from others until all of it is gone.
        """
        if made:
            log.warning("mig devices of a claim without a record undone", claim_uid=uid)
        failed = self._steps.sweep(uid, NO_WAIT)
        for name, _ in failed:
            self._on_failed(name)
        if failed:
            return False  # devices in use are not destroyed
        try:
            self._mig.take_away(made)
        except DriverError:
            self._on_failed(MIG)
            return False
        for gpu in gpus_of(made):
            self._mig.tidy(gpu)
        self._ownership.unmark_all(uid)
        return True

    def vacate(self, uid: ClaimUid, wanted: ClaimRecord) -> None:
        """Take back what a claim without a record may have left where a record wants something.

        If a whole GPU that the claim had is given to another one, the claim is gone. If only a part
        of the GPU is wanted, `MigDevices.make_room` removes what is in the way. Raises
        TransientError if something is still there, StateError if the disk refuses.
        """
        whole = {device.gpu for device in wanted.held if isinstance(device.base, Whole | Vfio)}
        marked = [gpu for gpu in whole if uid in self._ownership.holders(gpu)]
        if marked and not self.sweep(uid, self.made_for(uid)):
            raise TransientError(
                f"{', '.join(marked)} cannot be used yet: what was made there for claim UID {uid}, "
                "whose record is lost, has not ended"
            )

    def delete_halves(self) -> None:
        """Delete CDI files that a killed process did not finish, and notes of former boots."""
        self._specs.files.delete_leftovers()
        self._ownership.forget_other_boots()


def gpus_of(made: Iterable[MigSlot]) -> set[GpuUuid]:
    """Return the GPUs on which the MIG devices are."""
    return {slot.gpu for slot in made}
