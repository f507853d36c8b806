"""Undoes everything for the claims of a node, when this driver leaves it permanently.

In: the claims of the node, with nobody else at work. Out: hardware as before the claims, and none
of their files; or why something could not be undone. The steps are those of an unprepare
(claims/prepare/cleanup.py), then those after a crash (claims/prepare/leftovers.py).
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from msgspec import Struct

from dra_driver.cdi.store import SpecStore
from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.model.record import RecordState
from dra_driver.claims.prepare.leftovers import gpus_of
from dra_driver.claims.prepare.node_claims import NodeClaims
from dra_driver.claims.state.locks import NodeLocks
from dra_driver.claims.state.ownership import Ownership
from dra_driver.claims.state.records import stored_records
from dra_driver.errors import DriverError

_UNDO_SECONDS = 20.0
"""Seconds for hardware, and for an MPS daemon, to undo what was set for one claim."""


class ClaimsLeft(Struct, frozen=True, kw_only=True):
    """The node's claims, for people. `prepared` are those that may be in use."""

    prepared: tuple[str, ...]
    things: tuple[str, ...]


def look(directory: Path, specs: SpecStore, boot_id: str) -> ClaimsLeft:
    """Return the claims in the driver's directory, without changing anything."""
    stored, ownership = stored_records(directory), Ownership(directory, boot_id)
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
        f"MIG device of profile {slot.profile_id} at {slot.start} on {slot.gpu}"
        for slot in ownership.made()
    ]
    things += [f"MIG mode of {gpu}" for gpu in ownership.gpus_turned_on()]
    return ClaimsLeft(prepared=tuple(prepared), things=tuple(things))


class Removal:
    """Undoes what was done for claims. `clock` is monotonic, in seconds."""

    def __init__(self, claims: NodeClaims, locks: NodeLocks, clock: Callable[[], float]) -> None:
        self._claims = claims
        self._locks = locks
        self._clock = clock

    def run(self) -> list[str]:
        """Undo everything; return what could not be undone, with the reasons, for people."""
        problems: list[str] = []
        for uid in sorted(self._claims.leftovers.traced()):
            problems += _problems(f"claim UID {uid}", partial(self._take_back, uid))
        problems += _problems("MIG devices", self._destroy)
        problems += _problems("MPS domains", self._tidy)
        self._claims.leftovers.delete_halves()
        return problems

    def _take_back(self, uid: ClaimUid) -> list[str]:
        end = self._clock() + _UNDO_SECONDS
        with self._locks.claim(uid, end):
            record = self._claims.records.read(uid)
            if record is not None:
                self._claims.cleanup.begin_release(record, deadline=end)
                with self._locks.gpus(record.touched_gpus, end):
                    left = self._claims.cleanup.release(record, deadline=end)
                return [f"{due.of.name} on {', '.join(due.of.gpus)}: {due.reason}" for due in left]
            is_gone = self._claims.leftovers.take_back(uid, self._locks, end)
            return [] if is_gone else ["its settings could not be undone"]

    def _destroy(self) -> list[str]:
        """Destroy the MIG devices that are left, and turn MIG mode off where it was turned on."""
        ownership, mig = self._claims.ownership, self._claims.mig
        end = self._clock() + _UNDO_SECONDS
        made = {
            slot: uid
            for slot, uid in ownership.made().items()
            if uid not in self._claims.records.uids()
        }
        with self._locks.gpus({*gpus_of(made), *ownership.gpus_turned_on()}, end):
            problems: list[str] = []
            try:
                mig.take_away(made)
            except DriverError as error:
                problems = [str(error)]
            return problems + [
                f"MIG mode of {gpu} could not be turned off"
                for gpu in ownership.gpus_turned_on()
                if not mig.tidy(gpu) or ownership.made(gpu)
            ]

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
