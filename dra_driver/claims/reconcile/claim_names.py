"""Names of claims of which only the UID is known: those that were taken over.

In: records without a name. Out: the same with the names that the API server has for their UIDs, or
that it has no such claim. All claims are listed once for all of them; a UID never comes back.
"""

from dataclasses import replace

import structlog

from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.reconcile.orphans import ClaimLister
from dra_driver.claims.state.locks import NodeLocks
from dra_driver.claims.state.records import RecordStore
from dra_driver.errors import AccessError, DriverError, UnavailableError

log = structlog.get_logger()


class ClaimNames:
    """Gives records their claims' names.

    Args:
        api: the API server.
        records: the records of this node.
        locks: per claim.
    """

    def __init__(self, api: ClaimLister, records: RecordStore, locks: NodeLocks) -> None:
        self._api = api
        self._records = records
        self._locks = locks
        self._gone: set[ClaimUid] = set()

    def look(self, *, timeout: float, lock_deadline: float) -> set[ClaimUid]:
        """Name each record without a name whose claim is still there; return those left for later.

        Args:
            timeout: for one request to the API server, in seconds.
            lock_deadline: how long to wait for a claim that somebody is busy with.

        Raises:
            StateError: the records cannot be read.
        """
        nameless = {record.ref.uid for record in self._records.readable() if not record.ref.name}
        self._gone &= nameless
        unknown = nameless - self._gone
        if not unknown:
            return set()
        found: dict[ClaimUid, ClaimRef] = {}
        try:
            for claim in self._api.each_claim(timeout=timeout):
                metadata = claim["metadata"]
                uid = ClaimUid(metadata["uid"])
                if uid in unknown:
                    found[uid] = ClaimRef(
                        uid=uid, namespace=metadata["namespace"], name=metadata["name"]
                    )
        except AccessError as error:
            log.info("claims kept without a name", claims=sorted(unknown), reason=str(error))
            return set()
        except UnavailableError as error:
            log.debug("claims not named yet", reason=str(error))
            return unknown
        self._gone |= unknown - found.keys()
        return {uid for uid, ref in found.items() if not self._named(ref, lock_deadline)}

    def _named(self, ref: ClaimRef, lock_deadline: float) -> bool:
        try:
            with self._locks.claim(ref.uid, lock_deadline):
                record = self._records.read(ref.uid)
                if record is not None and not record.ref.name:
                    self._records.write(replace(record, ref=ref))
                    log.info("claim taken over has a name", claim=str(ref), claim_uid=ref.uid)
        except DriverError as error:  # somebody is busy with it, or the disk refused
            log.debug("claim not named yet", claim=str(ref), reason=str(error))
            return False
        return True

    def is_gone(self, uid: ClaimUid) -> bool:
        """Tell whether the API server has said that there is no claim of this UID."""
        return uid in self._gone
