"""A claim's way to its devices and back, step by step, each between two consistent states.

In: a claim with its configs, or its record. Out: marks on GPUs, a record, devices that exist and
are shared as the configs say, and a CDI spec.

    mark -> intend -> realise -> share -> record -> describe -> specify
    released -> unshare -> unmake -> unspecify -> forget -> unmark

Hardware is changed only under a record that says what will be changed, and a kill at any point is
repaired by the next call for the claim or by claims/reconcile.py. Where no hardware is changed,
nothing is intended. Sharing is planned for devices that exist; while some are still to be made it
is tried out (`Strategies.dry_plan`), and intended when they are there. Nothing here asks the API
server or takes a lock: callers hold the lock of the claim and of the GPUs it touches.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dra_driver.cdi.model import Spec
from dra_driver.cdi.spec import claim_device_id
from dra_driver.claims.cleanup import Cleanup
from dra_driver.claims.config import ConfigGroup
from dra_driver.claims.devices import (
    DeviceRecord,
    recorded,
    restored,
)
from dra_driver.claims.holdings import Holdings
from dra_driver.claims.leftovers import Leftovers
from dra_driver.claims.model import Claim
from dra_driver.claims.realise import Realisers
from dra_driver.claims.record import ClaimRecord, PendingCleanup, RecordState
from dra_driver.claims.specs import ClaimSpecs
from dra_driver.claims.strategies import Strategies
from dra_driver.devices.kinds import NodeDevice
from dra_driver.errors import DriverError

UNDO_SECONDS = 2.0
"""What is kept, after a call's deadline, to take back what could not be done by then."""

LONGEST_UNDO_SECONDS = 5.0
"""The most of a call that failed for taking back; its reason should not wait for what is hung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a claim is to get.

    Attributes:
        draft: the record that it will have, its devices not looked for yet.
        allocated: what these devices are on this node, by allocation id.
        groups: the devices by the config that holds for them.
    """

    draft: ClaimRecord
    allocated: Mapping[str, NodeDevice]
    groups: Sequence[ConfigGroup]


class Transaction:
    """Prepares claims and takes them back.

    Args:
        holdings: which claim has what.
        realisers: make devices exist.
        strategies: share devices.
        specs: the claims' CDI specs.
        cleanup: takes back.
        leftovers: what claims without a record have left.
        clock: monotonic, in seconds; deadlines are its values.
        step: called with the name of each step that is done; tests end the process there.
    """

    def __init__(  # noqa: PLR0913 (the rooms a claim passes through)
        self,
        *,
        holdings: Holdings,
        realisers: Realisers,
        strategies: Strategies,
        specs: ClaimSpecs,
        cleanup: Cleanup,
        leftovers: Leftovers,
        clock: Callable[[], float],
        step: Callable[[str], None],
    ) -> None:
        self._holdings = holdings
        self._records = holdings.records
        self._realisers = realisers
        self._strategies = strategies
        self._specs = specs
        self._cleanup = cleanup
        self._leftovers = leftovers
        self._clock = clock
        self._step = step

    def draft(self, claim: Claim, allocated: Mapping[str, NodeDevice]) -> ClaimRecord:
        """Return the record the claim will have, as far as its allocation says."""
        return ClaimRecord(
            ref=claim.ref,
            boot_id=self._holdings.boot_id,
            state=RecordState.PREPARED,
            devices=tuple(
                DeviceRecord(
                    name=result.device,
                    device=recorded(allocated[result.allocation_id].device),
                    pool=result.pool,
                    request_names=(result.base_request,),
                    cdi_device_ids=(
                        claim_device_id(claim.ref.uid, result.device, result.share_id),
                    ),
                    admin_access=result.admin_access,
                    share_id=result.share_id,
                    subrequest=result.subrequest,
                )
                for result in claim.results
            ),
            pods=claim.pods,
            groups=claim.groups,
            pod_claim_name=claim.pod_claim_name,
        )

    def prepare(self, wanted: Wanted, *, deadline: float) -> ClaimRecord:
        """Give a claim what it is to get; return its record.

        Raises:
            ConfigError: a config asks for what these devices or this driver cannot do.
            DeviceError, TransientError: the hardware refused, or takes longer than until the
                deadline; what was changed has been undone, or is a pending cleanup.
            StateError: the disk refused; the next call for the claim finishes or undoes it.
        """
        record = self._find(wanted, deadline)
        is_planned = record.is_complete
        spec = self._specs.of(record) if is_planned else None
        # Up to here nothing was changed that would have to be taken back.
        self._mark(record)
        if record.realisations or record.plans:
            self._intend(record)
            try:
                record = self._realise(record)
                if not is_planned:
                    record = self._plan(record, wanted, deadline)
                    if record.plans:
                        self._intend(record)
                self._share(record, deadline)
                spec = spec or self._specs.of(record)
            except DriverError:
                end = min(deadline + UNDO_SECONDS, self._clock() + LONGEST_UNDO_SECONDS)
                self.release(record, deadline=end)
                raise
        self._record(record)
        self._describe(record)
        self._specify(record, spec or self._specs.of(record))
        return record

    def release(self, record: ClaimRecord, *, deadline: float) -> tuple[PendingCleanup, ...]:
        """Take back everything of a claim; return what hardware refuses to take back.

        That stays in a record of its own; see claims/cleanup.py. A full disk is no reason to fail.

        Raises:
            StateError: nothing can be changed on this disk, and nothing was.
        """
        if record.state is not RecordState.RELEASED:
            # What is half undone is not prepared: whoever comes then must not take it for that.
            self._records.note_release(record.ref.uid)
        left = self._cleanup.undo(record, deadline)
        self._step("undone")
        return self._cleanup.forget(record, left)

    # A claim that is prepared

    def mend(self, record: ClaimRecord) -> ClaimRecord:
        """Return the record of a prepared claim whose devices are there; lost ones are made.

        Raises:
            DeviceError, TransientError: one cannot be.
            StateError: the disk refused.
        """
        mended = self._realisers.mend(record)
        if mended != record:
            self._records.write(mended)
        return mended

    def restore(self, record: ClaimRecord) -> None:
        """Bring marks, sharing and CDI spec of a prepared claim in line with its record.

        Raises:
            DeviceError, TransientError: a GPU of the claim is not there.
            StateError: the disk refused.
        """
        for uuid in record.touched_gpus:
            self._holdings.ownership.mark(uuid, record.ref.uid)
        self._strategies.ensure(record.plans, None)
        self._specs.write(record)

    def uphold(self, record: ClaimRecord) -> None:
        """Bring the sharing of a prepared claim in line with its record.

        Raises:
            DeviceError, TransientError: a GPU refuses, or is not there.
            StateError: the disk refused.
        """
        self._strategies.ensure(record.plans, None)

    def wait_ready(self, record: ClaimRecord, *, deadline: float) -> None:
        """Wait until containers can be started with what was applied for a prepared claim.

        Raises:
            DeviceError, TransientError: they cannot by the deadline.
        """
        self._strategies.ensure(record.plans, deadline)

    # Steps of `prepare`, in their order

    def _find(self, wanted: Wanted, deadline: float) -> ClaimRecord:
        """Return a draft with the devices that are there, and what is to be done. Nothing is yet.

        Sharing of devices that are to be made is only tried out: a wrong config should be heard of
        before anything is made.
        """
        self._leftovers.make_room(wanted.draft)
        record = self._realisers.find(wanted.draft, wanted.allocated)
        if record.is_complete:
            return self._plan(record, wanted, deadline)
        devices = _devices(record, wanted)
        owed = self._holdings.owed(record)
        self._strategies.dry_plan(record, wanted.groups, devices, owed, deadline)
        return record

    def _plan(self, record: ClaimRecord, wanted: Wanted, deadline: float) -> ClaimRecord:
        devices = _devices(record, wanted)
        owed = self._holdings.owed(record)
        plans = self._strategies.plan(record, wanted.groups, devices, owed, deadline)
        return replace(record, plans=plans)

    def _mark(self, record: ClaimRecord) -> None:
        for uuid in record.held_gpus:
            self._holdings.ownership.mark(uuid, record.ref.uid)
        self._step("marked")

    def _intend(self, record: ClaimRecord) -> None:
        # A power cut takes back what a plan sets, or it is found without a record (`sweep`).
        is_durable = bool(record.realisations or record.pending)
        self._records.write(replace(record, state=RecordState.PREPARING), durable=is_durable)
        self._step("intended")

    def _realise(self, record: ClaimRecord) -> ClaimRecord:
        if not record.realisations:
            return record
        record = self._realisers.make(record)
        self._step("made")
        return record

    def _share(self, record: ClaimRecord, deadline: float) -> None:
        self._strategies.apply(record.plans, deadline)
        self._step("applied")

    def _record(self, record: ClaimRecord) -> None:
        self._records.write(record)
        self._step("recorded")

    def _describe(self, record: ClaimRecord) -> None:
        # Before the spec, which has what is described mounted.
        self._specs.describe(record)
        self._step("described")

    def _specify(self, record: ClaimRecord, spec: Spec) -> None:
        self._specs.files.write(record.ref.uid, spec)
        self._step("specified")


def _devices(record: ClaimRecord, wanted: Wanted) -> dict[str, NodeDevice]:
    """Return what the devices of a record are, by allocation id."""
    return {
        entry.allocation_id: restored(entry.device, wanted.allocated[entry.allocation_id].gpu)
        for entry in record.devices
    }
