"""A claim's way to its devices and back, step by step, each between two consistent states.

In: a claim with its configs, or its record. Out: marks on GPUs, a record, devices that exist and
are shared as the configs say, and a CDI spec.

    mark -> intend -> realise -> share -> wait -> record -> describe -> specify
    released -> let go -> unshare -> unmake -> unspecify -> forget -> unmark

Hardware is changed only under a record that says what will be changed, and a kill at any point is
repaired by the next call for the claim or by claims/reconcile/reconciler.py. Where no hardware is
changed, nothing is intended. Sharing is planned for devices that exist; while some are still to be
made it is tried out (`Strategies.dry_plan`), and intended when they are there. Nothing here asks
the API server or takes a lock. Callers hold the lock of the claim, and that of the GPUs it touches,
but not where a daemon is waited for (`complete`, `wait_ready`, `let_go`): the GPU's other users
need not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dra_driver.cdi.model import Spec
from dra_driver.cdi.spec import claim_device_id
from dra_driver.claims.model.claim import Claim
from dra_driver.claims.model.config import ConfigGroup
from dra_driver.claims.model.devices import (
    DeviceRecord,
    recorded,
    restored,
)
from dra_driver.claims.model.record import ClaimRecord, PendingCleanup, RecordState
from dra_driver.claims.prepare.cleanup import Cleanup
from dra_driver.claims.prepare.leftovers import Leftovers
from dra_driver.claims.prepare.realise import Realisers
from dra_driver.claims.prepare.specs import ClaimSpecs
from dra_driver.claims.prepare.strategies import Strategies
from dra_driver.claims.state.holdings import Holdings
from dra_driver.devices.kinds import NodeDevice


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A claim's record, and its spec that is yet to be written; None: all is done."""

    record: ClaimRecord
    spec: Spec | None


class Transaction:
    """Prepares claims and takes them back.

    Args:
        holdings: which claim has what.
        realisers: make devices exist.
        strategies: share devices.
        specs: the claims' CDI specs.
        cleanup: takes back.
        leftovers: what claims without a record have left.
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
        step: Callable[[str], None],
    ) -> None:
        self._holdings = holdings
        self._records = holdings.records
        self._realisers = realisers
        self._strategies = strategies
        self._specs = specs
        self._cleanup = cleanup
        self._leftovers = leftovers
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

    def begin(self, wanted: Wanted, *, deadline: float) -> Begun:
        """Give a claim what it is to get; a daemon is asked for, and `complete` waits for it.

        Raises:
            ConfigError: a config asks for what these devices or this driver cannot do.
            DeviceError, TransientError: the hardware refused, or takes longer than until the
                deadline.
            StateError: the disk refused.
            In any case: what was changed stands in a record that is PREPARING.
        """
        record = self._find(wanted, deadline)
        is_planned = record.is_complete
        spec = self._specs.of(record) if is_planned else None
        # Up to here nothing was changed that would have to be taken back.
        self._mark(record)
        if record.realisations or record.plans:
            self._intend(record)
            record = self._realise(record)
            if not is_planned:
                record = self._plan(record, wanted, deadline)
                if record.plans:
                    self._intend(record)
            self._share(record, deadline)
        begun = Begun(record=record, spec=spec or self._specs.of(record))
        return begun if self._strategies.lasting(record.plans) else self._finish(begun)

    def complete(
        self, begun: Begun, *, deadline: float, given_up: Callable[[], bool]
    ) -> ClaimRecord:
        """Wait for what was begun for a claim, and record it; return its record.

        Raises:
            DeviceError, TransientError: its daemon is not ready by the deadline, or nobody wants it
                any more; the record is PREPARING.
            StateError: the disk refused.
        """
        if begun.spec is not None:
            self.wait_ready(begun.record, deadline=deadline, given_up=given_up)
            self._finish(begun)
        return begun.record

    def let_go(self, record: ClaimRecord, *, deadline: float) -> bool:
        """Have the daemons of a claim end that is to be released; tell whether all have.

        Raises:
            StateError: nothing can be changed on this disk, and nothing was.
        """
        self._note_release(record)
        return self._cleanup.let_go(record, deadline)

    def release(self, record: ClaimRecord, *, deadline: float) -> tuple[PendingCleanup, ...]:
        """Take back everything of a claim; return what hardware refuses to take back.

        That stays in a record of its own; see claims/prepare/cleanup.py. A full disk is no reason
        to fail.

        Raises:
            StateError: nothing can be changed on this disk, and nothing was.
        """
        self._note_release(record)
        left = self._cleanup.undo(record, deadline)
        self._step("undone")
        return self._cleanup.forget(record, left)

    def _note_release(self, record: ClaimRecord) -> None:
        # What is half undone is not prepared, and must not be taken for that.
        if record.state is not RecordState.RELEASED:
            self._records.note_release(record.ref.uid)

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
        self._strategies.ensure(record.plans)
        self._specs.write(record)

    def uphold(self, record: ClaimRecord) -> None:
        """Bring the sharing of a prepared claim in line with its record.

        Raises:
            DeviceError, TransientError: a GPU refuses, or is not there.
            StateError: the disk refused.
        """
        self._strategies.ensure(record.plans)

    def wait_ready(
        self, record: ClaimRecord, *, deadline: float, given_up: Callable[[], bool]
    ) -> None:
        """Wait until containers can be started with what was applied for a claim.

        Raises:
            DeviceError, TransientError: they cannot by the deadline, or nobody wants it any more.
        """
        self._strategies.wait_ready(record.plans, deadline, given_up)

    # Steps of `begin` and `complete`, in their order

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

    def _finish(self, begun: Begun) -> Begun:
        record = begun.record
        self._record(record)
        self._describe(record)
        self._specify(record, begun.spec or self._specs.of(record))
        return replace(begun, spec=None)

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
