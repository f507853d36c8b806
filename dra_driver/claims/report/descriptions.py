"""How a device of a claim is shared, as its record says it: the strategy's name, and its settings.

In: a record and one of its devices. Out: what `dra-driver status` shows on the node (admin/status),
and what the claim's own status says in the cluster (claims/report/claim_status.py): the same words
for both. Pure.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from dra_driver.claims.model.devices import DeviceRecord
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.sharing import mps, nvidia_mps, shares, time_slicing
from dra_driver.sharing.base import EXCLUSIVE, Description, DeviceKey, SharingPlan
from dra_driver.sharing.mps import Mps
from dra_driver.sharing.time_slicing import TimeSlicing

ADMIN_ACCESS = "AdminAccess"
"""What devices with admin access have in the place of a strategy: they are never changed."""

_DESCRIBE: Mapping[str, Callable[[SharingPlan, DeviceKey], Description]] = MappingProxyType(
    {
        time_slicing.NAME: TimeSlicing.describe,
        mps.NAME: Mps.describe,
        nvidia_mps.NAME: nvidia_mps.NvidiaMps.describe,
        shares.NAME: shares.Shares.describe,
    }
)
"""How each strategy describes its plans. One that is not known here shows by its name alone."""


def strategy_of(record: ClaimRecord, device: DeviceRecord) -> str:
    """Return the name of how a device is shared."""
    if device.admin_access:
        return ADMIN_ACCESS
    plan = _plan_of(record, device)
    return plan.strategy if plan else EXCLUSIVE


def description_of(record: ClaimRecord, device: DeviceRecord) -> Description:
    """Return what a device's containers are given. Raises StateError if its plan is unreadable."""
    plan, key = _plan_of(record, device), device.device.key
    if plan is None or key is None or plan.strategy not in _DESCRIBE:
        return Description()
    return _DESCRIBE[plan.strategy](plan, key)


def memory_limit(record: ClaimRecord, devices: Iterable[DeviceRecord]) -> int | None:
    """Return the MiB that a claim may have of a GPU or MIG device; None if nothing limits it.

    `devices` are all that it has there. Those under one plan, as shares that add up, are limited
    together: each is described with the limit of all. Raises StateError if a plan cannot be read.
    """
    limits: dict[int, int] = {}
    for device in devices:
        plan = _plan_of(record, device)
        limit = None if plan is None else _memory_limit(plan, device)
        if limit is None:
            return None
        limits[id(plan)] = max(limit, limits.get(id(plan), 0))
    return sum(limits.values()) if limits else None


def _memory_limit(plan: SharingPlan, device: DeviceRecord) -> int | None:
    key = device.device.key
    if key is None or plan.strategy not in _DESCRIBE:
        return None
    of_pod = shares.memory_part(plan).mib if plan.strategy == shares.NAME else {}
    if device.device.gpu in of_pod:
        return of_pod[device.device.gpu]
    settings = _DESCRIBE[plan.strategy](plan, key).settings
    found = (settings.get(name) for name in ("memoryMiB", "pinnedMemoryMiB"))
    return next((amount for amount in found if isinstance(amount, int)), None)


def _plan_of(record: ClaimRecord, device: DeviceRecord) -> SharingPlan | None:
    if device.admin_access:
        return None
    return next((plan for plan in record.plans if device.device.part in plan.parts), None)
