"""Undoes everything for the claims of a node, when this driver is removed from it for good.

In: the claims of the node, while nothing else changes them. Out: hardware as before the claims, and
none of their files; or why something could not be undone. The steps are those of an unprepare
(claims/prepare/release.py).
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from msgspec import Struct

from dra_driver.admin.stored import stored_records
from dra_driver.cdi.store import SpecStore
from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.model.record import MakeMigDevices, RecordState
from dra_driver.claims.prepare.node_claims import NodeClaims
from dra_driver.errors import DriverError

_UNDO_SECONDS = 20.0
"""Seconds for hardware, and for an MPS daemon, to undo what was set for one claim."""


class ClaimsLeft(Struct, frozen=True, kw_only=True):
    """The node's claims, for people. `prepared` are those that may be in use."""

    prepared: tuple[str, ...]
    things: tuple[str, ...]


def look(directory: Path, specs: SpecStore, boot_id: str) -> ClaimsLeft:
    """Return the claims in the driver's directory, without changing anything."""
    stored = stored_records(directory)
    prepared = [
        f"{record.ref} ({', '.join(entry.name for entry in record.devices)})"
        for record in stored.records
        if record.boot_id == boot_id and record.state is not RecordState.RELEASED
    ]
    prepared += [f"{name}, of a newer version of this driver" for name in sorted(stored.newer)]
    things = [f"record of claim {record.ref}" for record in stored.records]
    things += [f"record {name}" for name in sorted(stored.damaged)]
    things += [f"CDI spec of claim UID {uid}" for uid in sorted(specs.uids())]
    things += [
        f"MIG device of profile {place.profile_id} at {place.placement.start} on {step.gpu}"
        for record in stored.records
        for step in record.all_steps
        if isinstance(step, MakeMigDevices) and record.boot_id == boot_id
        for place in step.places
    ]
    return ClaimsLeft(prepared=tuple(prepared), things=tuple(things))


class Removal:
    """Undoes what was done for claims. `clock` is monotonic, in seconds."""

    def __init__(self, claims: NodeClaims, clock: Callable[[], float]) -> None:
        self._claims = claims
        self._clock = clock

    def run(self) -> list[str]:
        """Undo everything; return what could not be undone, with the reasons, for people."""
        claims = self._claims
        uids = claims.ledger.uids()
        uids |= set(map(ClaimUid, claims.specs.uids() | claims.steps.claims()))
        problems: list[str] = []
        for _ in range(2):  # a mode may stay on until other claims are undone, too
            problems = []
            for uid in sorted(uids):
                problems += _problems(f"claim UID {uid}", partial(self._release, uid))
        problems += _problems("MPS domains", self._tidy)
        claims.specs.files.delete_leftovers()
        return problems

    def _release(self, uid: ClaimUid) -> list[str]:
        end = self._clock() + _UNDO_SECONDS
        with self._claims.locks.claim(uid, end):
            record = self._claims.ledger.read(uid)
            if record is not None:
                left = self._claims.release.release(record, end)
                return [f"{due.of.name} on {', '.join(due.of.gpus)}: {due.reason}" for due in left]
            is_gone = self._claims.release.forget(uid, end)
            return [] if is_gone else ["its settings could not be undone"]

    def _tidy(self) -> list[str]:
        self._claims.tidy()
        return []


def _problems(what: str, step: Callable[[], list[str]]) -> Iterator[str]:
    try:
        problems = step()
    except DriverError as error:
        problems = [str(error)]
    for text in problems:
        yield f"{what}: {text}"
