"""Asks the API server whether a claim that is prepared here still has a right to its devices.

In: a record. Out: a reason, or none. A claim loses its devices when it is deleted, or when its last
pod is gone and its allocation is removed. The scheduler may then allocate them to others at once,
before the kubelet ends the containers and calls Unprepare (kubernetes/kubernetes#141471).
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dra_driver.claims.model.claim import Claim, ClaimRef, parse_claim, uid_of
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.errors import ConfigError, NotFoundError, UnavailableError
from dra_driver.kube.client import KubeClient


def why_gone(claims: KubeClient, record: ClaimRecord, *, timeout: float) -> str | None:
    """Return why a recorded claim has no right to its devices any more; None if it has.

    The answer follows "claim X, which …". `timeout` is in seconds. Raises TransientError if the API
    server does not answer, or the answer cannot be read; DriverError if it refuses to answer.
    """
    if not record.ref.name:  # its node was taken over, when no pod had it any more
        return "is known by its UID alone, and had no pod here"
    try:
        stored = claims.get_claim(record.ref.namespace, record.ref.name, timeout=timeout)
    except NotFoundError:
        return "no longer exists"
    uid = uid_of(stored)
    if uid is not None and uid != record.ref.uid:
        return f"was replaced by one of UID {uid}"
    status = stored.get("status")
    if uid and (not status or (isinstance(status, Mapping) and status.get("allocation") is None)):
        return "is no longer allocated"
    try:
        claim = parse_claim(stored, DRIVER_NAME)
    except ConfigError as error:
        # A claim that cannot be read may still have its devices.
        raise UnavailableError(f"claim {record.ref}: {error}") from error
    return None if has_devices_of(claim, record) else "was allocated again"


def stored_claim(claims: KubeClient, ref: ClaimRef, *, timeout: float) -> Mapping[str, Any] | None:
    """Return a claim as the API server has it; None if it is gone or its name has another UID now.

    `timeout` is in seconds. Raises DriverError if the API server does not answer.
    """
    try:
        stored = claims.get_claim(ref.namespace, ref.name, timeout=timeout)
    except NotFoundError:
        return None
    return stored if uid_of(stored) == ref.uid else None


def allocated(stored: Mapping[str, Any] | None) -> Claim | None:
    """Return a claim that exists and has devices; None if it does not exist or has none."""
    with suppress(ConfigError):
        return None if stored is None else parse_claim(stored, DRIVER_NAME)
    return None


def has_devices_of(claim: Claim, record: ClaimRecord) -> bool:
    """Tell whether the claim is allocated exactly the devices in the record."""
    allocated = {
        (result.pool, result.device, result.share_id, result.admin_access)
        for result in claim.results
    }
    recorded = {
        (device.pool, device.name, device.share_id, device.admin_access)
        for device in record.devices
    }
    return allocated == recorded
