"""Describes from a record how a claim's device is shared: the strategy's name and settings. Pure.

In: a record and one of its devices. Out: the words that `dra-driver status` shows on the node
(admin/status) and that the claim's own status has in the cluster (claims/report/claim_status.py).
"""

from collections.abc import Iterable, Iterator

from dra_driver.claims.model.record import ClaimRecord, DeviceRecord, MigStep
from dra_driver.sharing.base import EXCLUSIVE
from dra_driver.sharing.steps import Description, SharingStep, UseShares

ADMIN_ACCESS = "AdminAccess"
"""Stands in place of a strategy for devices with admin access, which are never changed."""


def strategy_of(record: ClaimRecord, device: DeviceRecord) -> str:
    """Return the name of the strategy by which a device is shared."""
    if device.admin_access:
        return ADMIN_ACCESS
    return next((step.name for step in _steps_of(record, device)), EXCLUSIVE)


def description_of(record: ClaimRecord, device: DeviceRecord) -> Description:
    """Return the sharing settings that a device's containers get."""
    parts = [step.describe(device.device) for step in _steps_of(record, device)]
    settings: dict[str, object] = {}
    for part in parts:
        settings |= part.settings
    return Description(
        settings=settings,
        words=tuple(word for part in parts for word in part.words),
        domain=next((part.domain for part in parts if part.domain is not None), None),
    )


def memory_limit(record: ClaimRecord, devices: Iterable[DeviceRecord]) -> int | None:
    """Return the MiB that a claim may use of a GPU or MIG device; None if nothing limits it.

    `devices` are all that the claim has there. Those under one step, such as shares, have one limit
    together.
    """
    limits: dict[int, int] = {}
    for device in devices:
        step = next(_steps_of(record, device), None)
        limit = None if step is None else _memory_limit(step, device)
        if limit is None:
            return None
        limits[id(step)] = limit
    return sum(limits.values()) if limits else None


def _memory_limit(step: SharingStep, device: DeviceRecord) -> int | None:
    if isinstance(step, UseShares):
        return step.memory_mib
    amount = step.describe(device.device).settings.get("pinnedMemoryMiB")
    return amount if isinstance(amount, int) else None


def _steps_of(record: ClaimRecord, device: DeviceRecord) -> Iterator[SharingStep]:
    if not device.admin_access:
        for step in record.steps:
            if not isinstance(step, MigStep) and step.is_about(device.device):
                yield step
