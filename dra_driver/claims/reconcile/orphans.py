"""Handles claims of which this node knows only the UID, by asking the API server for all claims.

CDI specs without a record are deleted
once the API server says that their claims are gone, and the kubelet names no pod that has them.
What lives by itself for such a claim, as MPS daemons and MIG devices do, is removed with the spec.

Such a spec may be in use: its record was damaged, or NVIDIA's driver wrote it under the same name
before this driver came to the node. Without it no container of a running pod can be restarted. So a
spec is deleted only if the claim no longer exists, and not if the API server does not answer or
does not let the driver list claims. Usually the kubelet's Unprepare comes first. Specs with the
name endings of NVIDIA's driver are not handled here.
"""

from collections.abc import Callable, Collection, Iterable

import structlog
from msgspec import Struct

from dra_driver.claims.model.claim import ClaimRef, ClaimUid, ref_of
from dra_driver.claims.prepare.node_claims import NodeClaims
from dra_driver.claims.reconcile.still_running import StillRunning
from dra_driver.claims.state.locks import NodeLocks
from dra_driver.claims.state.validity import stored_claim
from dra_driver.errors import AccessError, ConflictError, DriverError, UnavailableError
from dra_driver.host.worker import LogOnce
from dra_driver.kube.client import KubeClient

log = structlog.get_logger()


class ReconcileTiming(Struct, frozen=True, kw_only=True):
    """How often to look. All in seconds."""

    period: float = 600.0
    """Between two looks if nothing is left to do."""

    retry: float = 10.0
    """Between two looks at claims that could not be finished or seem to be gone, and between two
    looks for records without a CDI spec."""

    grace: float = 90.0
    """How long a claim must have been gone before it is unprepared."""

    lock_timeout: float = 1.0
    """How long to wait for a lock that a call of the kubelet has."""

    undo_timeout: float = 10.0
    """For the hardware to undo what was set for one claim."""

    request_timeout: float = 20.0
    """For one request to the API server."""


def _those_there(
    api: KubeClient, uids: Collection[ClaimUid], timeout: float
) -> dict[ClaimUid, ClaimRef]:
    """Return which of these claims exist. A UID never comes back."""
    every = map(ref_of, api.each_claim(timeout=timeout))
    return {ref.uid: ref for ref in every if ref.uid in uids}


class OrphanedSpecs:
    """Deletes CDI specs without a record. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        *,
        api: KubeClient,
        claims: NodeClaims,
        locks: NodeLocks,
        running: StillRunning,
        clock: Callable[[], float],
        timing: ReconcileTiming,
    ) -> None:
        self._api = api
        self._claims = claims
        self._locks = locks
        self._running = running
        self._clock = clock
        self._timing = timing
        self._found: dict[ClaimUid, ClaimRef] = {}
        self._gone_since: dict[ClaimUid, float] = {}
        self._once = LogOnce()

    def look(self, only: Iterable[ClaimUid] | None = None) -> set[ClaimUid]:
        """Delete specs whose claims have been gone for a while; return those to look at again."""
        records = self._claims.records.uids()
        orphans = {ClaimUid(uid) for uid in self._claims.specs.files.uids()} - records
        self._found = {uid: ref for uid, ref in self._found.items() if uid in orphans}
        self._gone_since = {uid: at for uid, at in self._gone_since.items() if uid in orphans}
        self._once.keep(orphans)
        todo = orphans if only is None else orphans.intersection(only)
        # A UID never comes back, so claims that are gone need not be asked for again.
        asked = todo.difference(self._gone_since)
        left: set[ClaimUid] = set()
        for uid in self._gone(asked, left):
            self._gone_since[uid] = self._clock()
        return left | {uid for uid in todo if uid in self._gone_since and not self._deleted(uid)}

    def _gone(self, uids: set[ClaimUid], left: set[ClaimUid]) -> set[ClaimUid]:
        """Return which of these claims no longer exist. All claims are listed at most once.

        Claims for which the API server does not answer are added to `left`.
        """
        gone: set[ClaimUid] = set()
        for uid in sorted(uids.intersection(self._found)):
            try:
                ref = self._found[uid]
                if stored_claim(self._api, ref, timeout=self._timing.request_timeout) is None:
                    gone.add(uid)
            except DriverError as error:
                log.debug("spec not compared", claim_uid=uid, reason=str(error))
                left.add(uid)
        unknown = uids.difference(self._found)
        if not unknown:
            return gone
        try:
            refs = _those_there(self._api, unknown, self._timing.request_timeout)
        except AccessError as error:
            log.info("specs without a record kept", claims=sorted(unknown), reason=str(error))
            return gone
        except UnavailableError as error:
            log.debug("specs not compared", reason=str(error))
            left |= unknown
            return gone
        self._found |= refs
        if refs:
            log.info("specs without a record kept", claims=sorted(refs), reason="claims exist")
        return gone | unknown.difference(refs)

    def _deleted(self, uid: ClaimUid) -> bool:
        if self._clock() - self._gone_since[uid] < self._timing.grace:
            return False
        try:
            with self._locks.claim(uid, self._clock()):
                if self._claims.records.read(uid) is None:
                    if (why := self._running.by_kubelet(uid)) is not None:
                        raise ConflictError(why)
                    log.info("spec of a claim that is gone deleted", claim_uid=uid)
                    end = self._clock() + self._timing.undo_timeout
                    self._claims.leftovers.take_back(uid, self._locks, end)
        except DriverError as error:
            if self._once.is_new(str(error), uid):
                log.warning("spec of a claim that is gone left", claim_uid=uid, reason=str(error))
            return False
        return True
