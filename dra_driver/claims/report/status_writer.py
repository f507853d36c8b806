"""Writes into each claim's own status which devices it has, and their health.

In: the records of claims, the GPUs, and the claims as the API server has them. Out: their
`status.devices` (claims/report/claim_status.py), in the background (kube/outbox.py), by server-side
apply under a field manager of its own, so that entries of other drivers stay; by a merge where an
apply is refused. A refusal by the API server harms no claim. What the API server already has is not
written again, even after a restart. What is wrong with devices is urgent.

Entries of a claim that was unprepared are removed if it is still allocated after a while; otherwise
the API server has removed them. If the driver ends in between, they stay until the claim is
prepared again or gives its devices back.
"""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import structlog

from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.model.record import ClaimRecord, RecordState
from dra_driver.claims.prepare.node_claims import NodeClaims
from dra_driver.claims.report.claim_status import (
    Entries,
    applied,
    entries,
    merged,
    stored_entries,
    updated,
)
from dra_driver.claims.report.device_health import HealthOf
from dra_driver.claims.state.validity import allocated, has_devices_of, stored_claim
from dra_driver.devices.model import InventorySource
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.errors import InvalidError, StateError
from dra_driver.host.worker import LogOnce
from dra_driver.kube.client import KubeClient
from dra_driver.kube.outbox import Message, Outbox
from dra_driver.kube.resource import RESOURCE_CLAIMS

log = structlog.get_logger()

MANAGER = f"{DRIVER_NAME}/dra-driver"
"""The field manager, the same on all nodes, because a claim is on one node at a time."""

_ALLOCATION = "status.allocation"
"""The field that the API server names when it mistakes an applied status for a change of it."""

PERIOD = 30.0
"""Seconds between two looks at all records, which are read from disk."""

WITHDRAW_AFTER = 10.0
"""Seconds after a claim's unprepare; by then most claims are deallocated or deleted."""

REFUSED_RETRY = 600.0

_REQUEST_TIMEOUT = 10.0

_DROPPED = (
    "the API server drops status.devices: its feature gate DRAResourceClaimDeviceStatus is off"
)
_CHECK = ("check claim status",)


class StatusWriter:
    """Puts the status of this node's claims into the outbox when it has changed.

    It begins when `devices_changed` is called for the first time, because before the GPUs are known
    it would take back what its predecessor wrote. All else is done on the outbox's thread.
    """

    def __init__(
        self,
        api: KubeClient,
        outbox: Outbox,
        claims: NodeClaims,
        inventory: InventorySource,
        *,
        health: HealthOf,
    ) -> None:
        self._api = api
        self._outbox = outbox
        self._claims = claims
        self._inventory = inventory
        self._health = health
        self._knows_devices = False
        self._written: dict[ClaimRef, Entries] = {}
        self._once = LogOnce()

    def claim_changed(self, ref: ClaimRef) -> None:
        """Have the status of a claim checked that was prepared or unprepared. Never blocks."""
        if self._knows_devices:
            self._outbox.put((*_CHECK, ref.uid), partial(self._check, ref))

    def devices_changed(self, *_: object) -> None:
        """Have all claims' status checked: the GPUs or their health have changed. Never blocks."""
        self._knows_devices = True
        self._outbox.put(_CHECK, partial(self.check, is_urgent=True), is_urgent=True)

    def check(self, *, is_urgent: bool = False) -> None:
        """Queue the status of all claims that has changed, now and every 30 s.

        Raises StateError.
        """
        self._outbox.put(_CHECK, self.check, after=PERIOD)
        recorded = (record.ref for record in self._claims.ledger.readable())
        for ref in dict.fromkeys((*recorded, *self._written)):
            with suppress(StateError):  # code that reads all records reports it
                self._check(ref, is_urgent=is_urgent)

    def _check(self, ref: ClaimRef, *, is_urgent: bool = False) -> None:
        record = self._record(ref)
        if self._is_outdated(record) if record else ref in self._written:
            self._outbox.put(
                ("claim status", ref.uid),
                partial(self._update, ref),
                Message(
                    kind="claim status",
                    about={"claim": str(ref)},
                    refused_seconds=REFUSED_RETRY,
                ),
                after=0.0 if record else WITHDRAW_AFTER,
                is_urgent=is_urgent,
            )

    def _update(self, ref: ClaimRef) -> None:
        """Bring the status of a claim in line with its record as it is now."""
        record = self._record(ref)
        if record is None:
            self._withdraw(ref)
        elif self._is_outdated(record):
            self._write(record)

    def _record(self, ref: ClaimRef) -> ClaimRecord | None:
        """Return the record of a claim that is not unprepared."""
        record = self._claims.ledger.peek(ref.uid)
        return None if record is None or record.state is RecordState.RELEASED else record

    def _is_outdated(self, record: ClaimRecord) -> bool:
        """Tell whether a claim is prepared, and its status was not written as it is to be now."""
        if not self._claims.ledger.is_prepared(record) or not record.ref.name:
            return False
        return self._written.get(record.ref) != self._entries(record)

    def _entries(self, record: ClaimRecord) -> Entries:
        return entries(record, self._inventory.current(), self._health)

    def _write(self, record: ClaimRecord) -> None:
        """Write the status of a prepared claim."""
        wanted = self._entries(record)
        body = stored_claim(self._api, record.ref, timeout=_REQUEST_TIMEOUT)
        claim = allocated(body)
        if body is not None and claim is not None and has_devices_of(claim, record):
            stored = stored_entries(body)
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")  # noqa: TID251 (told)
            complete = updated(wanted, stored, now)
            if complete != stored:
                answer = self._send(applied(record.ref, complete), body)
                if stored_entries(answer):
                    self._once.forget()
                elif self._once.is_new(_DROPPED):
                    log.warning("claim status not stored", reason=_DROPPED)
        # For a claim that is gone, or has other devices now, there is nothing to write.
        self._written[record.ref] = wanted

    def _withdraw(self, ref: ClaimRef) -> None:
        """Remove this driver's entries from the status of a claim that was unprepared."""
        written = self._written.get(ref)
        if written is None:
            return
        stored = stored_claim(self._api, ref, timeout=_REQUEST_TIMEOUT)
        if stored is not None and stored_entries(stored).keys() & written.keys():
            # Bound to this version, because the claim may be allocated again, with new entries.
            version = str(stored["metadata"].get("resourceVersion", ""))
            self._send(applied(ref, {}, version), stored)
        del self._written[ref]

    def _send(self, body: dict[str, Any], stored: Mapping[str, Any]) -> Mapping[str, Any]:
        """Apply a status to the claim that was found, or merge it if it cannot be applied."""
        name, where = body["metadata"]["name"], body["metadata"]["namespace"]
        api, claims, seconds = self._api, RESOURCE_CLAIMS, _REQUEST_TIMEOUT
        try:
            return api.apply_status(
                claims, name, body, namespace=where, manager=MANAGER, timeout=seconds
            )
        except InvalidError as error:
            if _ALLOCATION not in str(error):
                raise
        body = merged(body, stored)
        return api.merge(
            claims,
            name,
            body,
            namespace=where,
            subresource="status",
            manager=MANAGER,
            timeout=seconds,
        )
