"""Posts Events on claims with shares of a GPU whose memory nothing limits.

In: the claims that have been prepared, and their records. Out: an Event with the reason and what to
do, once while the claim is prepared. It is posted after Prepare has answered: on the claim, and on
its pods, where people look who do not know the claim because they wrote resource names in limits.
"""

from functools import partial

from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.claims.report.claim_events import ClaimEvents, about_all
from dra_driver.claims.state.holdings import share_steps
from dra_driver.claims.state.ledger import Ledger
from dra_driver.host.words import named
from dra_driver.kube.outbox import Outbox
from dra_driver.sharing.limiters import Limiter

NOT_LIMITED = "GPUMemoryNotLimited"
"""The reason of the Events."""


class UnlimitedMemory:
    """Has Events posted about prepared claims. Methods may be called from any thread."""

    def __init__(self, records: Ledger, events: ClaimEvents, outbox: Outbox) -> None:
        self._records = records
        self._events = events
        self._outbox = outbox
        self._told: set[ClaimUid] = set()

    def prepared(self, ref: ClaimRef) -> None:
        """Take note that a claim was prepared, for the first time or again. Never blocks."""
        if ref.uid not in self._told:
            self._outbox.put(("memory of claim", ref.uid), partial(self._tell, ref))

    def unprepared(self, ref: ClaimRef) -> None:
        """Take note that a claim was unprepared. Never blocks."""
        self._told.discard(ref.uid)

    def _tell(self, ref: ClaimRef) -> None:
        if ref.uid in self._told:
            return
        record = self._records.peek(ref.uid)
        note = None if record is None else _not_limited(record)
        if record is None or note is None:
            return
        self._told.add(ref.uid)
        for about in about_all(ref, record.pods):
            self._events.post(about, reason=NOT_LIMITED, action="PreparingDevices", note=note)


def _not_limited(record: ClaimRecord) -> str | None:
    """Return what to tell a claim; None if something limits the memory of all its shares."""
    loose = [step for step in share_steps(record) if step.limited_by is Limiter.NOTHING]
    names = [
        entry.name for entry in record.devices if any(step.is_about(entry.device) for step in loose)
    ]
    if not names:
        return None
    reasons = "; ".join(dict.fromkeys(step.why for step in loose))
    return (
        f"nothing limits the GPU memory that this claim uses with {named(names)}: {reasons}. "
        "Each tenant can take the memory of all others. For a limit, write memory: equal in the "
        "share config, share by MPS (Volta or newer), or use a GPU driver of R615 or newer and "
        "cgroup v2"
    )
