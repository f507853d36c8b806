"""Prepares a claim step by step, each between two consistent states.

In: a claim with its configs, or its record. Out: a record, devices that exist and are shared as the
configs say, and a CDI spec. claims/prepare/release.py undoes it.

    resolve -> plan -> intend -> do -> wait -> record -> describe -> specify

Hardware is changed only under a record that says what will be changed. After a kill at any point,
the next call for the claim or claims/reconcile/reconciler.py repairs the state. If no hardware is
changed, no intent is written. The plan is made once, before any device is: its steps name places,
and get the MIG devices that were made there. Nothing here asks the API server or takes a lock.
Callers hold the locks of the claim and of the GPUs it touches, but no GPU's lock in `complete`, so
that a wait for a daemon does not hold up other users of the GPU.
"""

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.cdi.model import Spec
from dra_driver.claims.model.record import ClaimRecord, RecordState
from dra_driver.claims.prepare import resolve
from dra_driver.claims.prepare.allocation import Allocation
from dra_driver.claims.prepare.mig import MigDevices
from dra_driver.claims.prepare.specs import ClaimSpecs
from dra_driver.claims.prepare.steps import Steps, mig_steps, sharing_steps
from dra_driver.claims.state.holdings import owed
from dra_driver.claims.state.ledger import Ledger
from dra_driver.sharing import time_slicing


class Begun(Struct, frozen=True, kw_only=True):
    """A claim's record, and its spec if that is still to be written; None if all is done."""

    record: ClaimRecord
    spec: Spec | None


class Transaction:
    """Prepares claims."""

    def __init__(
        self,
        ledger: Ledger,
        mig: MigDevices,
        steps: Steps,
        specs: ClaimSpecs,
    ) -> None:
        self._ledger = ledger
        self._mig = mig
        self._steps = steps
        self._specs = specs

    def begin(self, allocation: Allocation, *, deadline: float) -> Begun:
        """Prepare a claim; if a daemon was asked for, `complete` waits for it.

        Where a record is lost, something may be set for its claim, so what is found there does not
        count as the state to restore. Raises ConfigError if a config asks for what these
        devices or this driver cannot do, DeviceError or TransientError if the hardware refuses or
        takes longer than until the deadline, StateError if the disk refuses. In any case the
        record, which is then PREPARING, says what was changed.
        """
        draft = allocation.draft
        lost = filter(self._ledger.has_lost, draft.held_gpus)
        left = (*owed(self._ledger, draft), *map(time_slicing.of_unknown, lost))
        record = resolve.resolve(self._mig, draft, allocation.gpus)
        sharing = self._steps.plan(record, allocation, left, deadline)
        record = replace(record, steps=(*record.steps, *sharing))
        spec = self._specs.of(record) if record.is_complete else None
        # Up to here nothing was changed that would have to be undone.
        if record.steps:
            self._write(replace(record, state=RecordState.PREPARING))
            made = self._steps.do(mig_steps(record.steps), deadline)
            record = resolve.with_made(record, made)
            self._steps.do(sharing_steps(record.steps), deadline)
        begun = Begun(record=record, spec=spec or self._specs.of(record))
        needs_no_wait = not any(step.lives_by_itself for step in record.steps)
        return self._finish(begun) if needs_no_wait else begun

    def complete(
        self, begun: Begun, *, deadline: float, given_up: Callable[[], bool]
    ) -> ClaimRecord:
        """Wait for what was begun for a claim, and record it; return its record.

        Raises DeviceError or TransientError, with the record still PREPARING, or StateError.
        """
        if begun.spec is not None:
            self._steps.wait(begun.record.steps, deadline, given_up)
            self._finish(begun)
        return begun.record

    def remake(self, record: ClaimRecord) -> ClaimRecord:
        """Return the record of a prepared claim, after lost devices have been made again.

        Raises as `resolve.remake` does, or StateError if the disk refuses.
        """
        remade = resolve.remake(self._mig, record)
        if remade != record:
            self._ledger.write(remade)
        return remade

    def restore(self, record: ClaimRecord) -> None:
        """Restore sharing and CDI spec of a prepared claim as its record says.

        Raises DeviceError or TransientError if a GPU is not there, StateError if the disk refuses.
        """
        self._steps.ensure(record.steps)
        self._specs.restore(record)

    def _finish(self, begun: Begun) -> Begun:
        self._write(begun.record)
        if begun.spec is not None:
            self._specs.write(begun.record, begun.spec)
        return replace(begun, spec=None)

    def _write(self, record: ClaimRecord) -> None:
        """Store a record, synced only if a power cut could leave what nobody finds without it.

        That can be MIG modes, and what earlier claims left. What sharing sets does not survive a
        power cut, or is found without a record (`sweep`), as files are. Containers and
        CDI specs do not survive either. So a claim that loses its record is like one that is
        allocated and not prepared yet: the kubelet prepares it in the new boot, or unprepares it.
        """
        self._ledger.write(record, durable=bool(mig_steps(record.steps) or record.pending))
