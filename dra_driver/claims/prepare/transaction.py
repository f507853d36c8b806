"""A claim's way to its devices, step by step, each between two consistent states.

In: a claim with its configs, or its record. Out: marks on GPUs, a record, devices that exist and
are shared as the configs say, and a CDI spec. The way back is claims/prepare/cleanup.py.

    resolve -> plan -> mark -> intend -> do -> wait -> record -> describe -> specify

Hardware is changed only under a record that says what will be changed, and a kill at any point is
repaired by the next call for the claim or by claims/reconcile/reconciler.py. Where no hardware is
changed, nothing is intended. Sharing is planned for devices that exist; while some are still to be
made it is tried out, and intended when they are there. Nothing here asks the API server or takes a
lock. Callers hold the lock of the claim, and that of the GPUs it touches, but not where a daemon is
waited for (`complete`): the GPU's other users need not.
"""

from collections.abc import Callable, Collection

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.cdi.model import Spec
from dra_driver.claims.model.record import ClaimRecord, RecordState
from dra_driver.claims.prepare import resolve
from dra_driver.claims.prepare.allocation import Allocation
from dra_driver.claims.prepare.mig import MigDevices
from dra_driver.claims.prepare.specs import ClaimSpecs
from dra_driver.claims.prepare.steps import Steps, mig_steps, sharing_steps
from dra_driver.claims.state.holdings import Holdings
from dra_driver.devices.model import GpuUuid
from dra_driver.sharing import time_slicing
from dra_driver.sharing.steps import PassThrough


class Begun(Struct, frozen=True, kw_only=True):
    """A claim's record, and its spec that is yet to be written; None: all is done."""

    record: ClaimRecord
    spec: Spec | None


class Transaction:
    """Prepares claims. `step` is called with the name of each step that is done."""

    def __init__(
        self,
        holdings: Holdings,
        mig: MigDevices,
        steps: Steps,
        specs: ClaimSpecs,
        *,
        step: Callable[[str], None],
    ) -> None:
        self._holdings = holdings
        self._records = holdings.records
        self._mig = mig
        self._steps = steps
        self._specs = specs
        self._step = step

    def begin(
        self, allocation: Allocation, *, deadline: float, lost: Collection[GpuUuid] = ()
    ) -> Begun:
        """Give a claim what it is to get; a daemon is asked for, and `complete` waits for it.

        On `lost` GPUs something may be set for a claim whose record is lost: what is found there is
        not taken for what stood before.
        Raises ConfigError if a config asks for what these devices or this driver cannot do,
        DeviceError or TransientError if the hardware refused or takes longer than until the
        deadline, StateError if the disk refused. In any case what was changed stands in a record
        that is PREPARING.
        """
        draft = allocation.draft
        self._mig.make_room(draft)
        owed = (*self._holdings.owed(draft), *map(time_slicing.of_unknown, lost))
        record = resolve.resolve(self._mig, draft, allocation.gpus)
        # Of devices that are to be made the plan is thrown away: a wrong config should be heard
        # of before anything is made.
        sharing = self._steps.plan(record, allocation, owed, deadline)
        spec: Spec | None = None
        if record.is_complete:
            record = replace(record, steps=(*record.steps, *sharing))
            if not any(isinstance(step, PassThrough) for step in sharing):
                spec = self._specs.of(record)  # else its nodes are there only afterwards
        # Up to here nothing was changed that would have to be taken back.
        for uuid in record.held_gpus:
            self._holdings.ownership.mark(uuid, record.ref.uid)
        self._step("marked")
        if record.steps:
            self._intend(record)
            making = mig_steps(record.steps)
            made = self._steps.do(making, deadline)
            if making:
                self._step("made")
            if not record.is_complete:
                record = resolve.with_made(record, made)
                sharing = self._steps.plan(record, allocation, owed, deadline)
                if sharing:
                    record = replace(record, steps=(*record.steps, *sharing))
                    self._intend(record)
            self._steps.do(sharing_steps(record.steps), deadline)
            self._step("applied")
        begun = Begun(record=record, spec=spec or self._specs.of(record))
        needs_no_wait = not any(step.lives_by_itself for step in record.steps)
        return self._finish(begun) if needs_no_wait else begun

    def complete(
        self, begun: Begun, *, deadline: float, given_up: Callable[[], bool]
    ) -> ClaimRecord:
        """Wait for what was begun for a claim, and record it; return its record.

        Raises DeviceError or TransientError, the record still PREPARING, or StateError.
        """
        if begun.spec is not None:
            self._steps.wait(begun.record.steps, deadline, given_up)
            self._finish(begun)
        return begun.record

    def remake(self, record: ClaimRecord) -> ClaimRecord:
        """Return the record of a prepared claim whose devices are there; lost ones are made.

        Raises as `resolve.remake`, or StateError if the disk refused.
        """
        remade = resolve.remake(self._mig, record)
        if remade != record:
            self._records.write(remade)
        return remade

    def restore(self, record: ClaimRecord) -> None:
        """Bring marks, sharing and CDI spec of a prepared claim in line with its record.

        Raises DeviceError or TransientError if a GPU is not there, StateError if the disk refused.
        """
        for uuid in record.touched_gpus:
            self._holdings.ownership.mark(uuid, record.ref.uid)
        self._steps.ensure(record.steps)
        self._specs.restore(record)

    def _intend(self, record: ClaimRecord) -> None:
        self._write(replace(record, state=RecordState.PREPARING))
        self._step("intended")

    def _finish(self, begun: Begun) -> Begun:
        self._write(begun.record)
        self._step("recorded")
        if begun.spec is not None:
            self._specs.write(begun.record, begun.spec)
        return replace(begun, spec=None)

    def _write(self, record: ClaimRecord) -> None:
        """Store a record, synced if what it names could outlive a power cut and be found by nobody.

        Such are MIG modes, and what earlier claims left. What sharing sets goes with the power, or
        is found without a record (`sweep`), and so are marks and files; containers and CDI specs
        are gone as well. A claim whose record is lost with them is one that the scheduler allocated
        and nobody prepared yet: the kubelet prepares it in the new boot, or unprepares it.
        """
        self._records.write(record, durable=bool(mig_steps(record.steps) or record.pending))
