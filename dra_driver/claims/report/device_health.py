"""How the devices of claims are doing, for those who tell it: one word, one reason. Pure.

In: a device as a claim's record has it, the latest look, and what is wrong by GPU. Out: whether it
is well, and what is wrong in a sentence; the same as entries for the kubelet, and as a condition of
the claim's status. Rules: a MIG device has what is wrong with the whole GPU or with its own
instance, and no more, and may be gone from a GPU that is well; a warning leaves a device well, and
a remark, which any of its users can cause, is not told; what a look could not find out is unknown,
unless it was known to be wrong before. How taints are set changes nothing here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum

from msgspec import Struct

from dra_driver.claims.model.record import ClaimRecord, DeviceRecord
from dra_driver.claims.report.claim_status import Condition, Conditions, prepared
from dra_driver.devices.device import Device, Mig, MigIds
from dra_driver.devices.health.debounce import GpuCondition, GpuConditions
from dra_driver.devices.health.findings import Severity
from dra_driver.devices.model import Inventory

MOST_BYTES = 1024
"""Of a message: what the kubelet passes on (pkg/kubelet/cm/dra/manager.go)."""

HEALTHY = "Healthy"
"""The type of the condition. Kubernetes itself names one type only, `Ready`, for a device that is
set up as it was asked for; whether it then works is another question."""


class Wellness(IntEnum):
    """Whether a device does what it is there for, from the best to the worst."""

    WELL = 0
    UNKNOWN = 1
    SICK = 2


class DeviceHealth(Struct, frozen=True, kw_only=True):
    """How a device is doing.

    `reason` is a word in CamelCase; `message` is for people, empty if there is nothing to say.
    """

    wellness: Wellness
    reason: str
    message: str = ""


WELL = DeviceHealth(wellness=Wellness.WELL, reason="Well")

Judge = Callable[[ClaimRecord, Device], DeviceHealth]
"""Says how a device of a claim is doing."""


class Reported(Struct, frozen=True, kw_only=True):
    """How a device is doing, by the name under which the kubelet knows it."""

    pool: str
    device: str
    health: DeviceHealth


def health_of(
    device: Device,
    inventory: Inventory,
    conditions: Mapping[str, GpuConditions],
    is_gone: Callable[[Mig], bool] = lambda _device: False,
) -> DeviceHealth:
    """Return how a device is doing, by the latest look.

    `conditions` are by UUID of the GPU, the gravest first; `is_gone` tells whether a MIG device is
    not there any more (devices/health/presence.py).
    """
    wrong = [
        ill
        for ill in conditions.get(device.gpu, ())
        if concerns(ill, device) and ill.finding.severity is not Severity.REMARK
    ]
    base = device.base
    if isinstance(base, Mig) and base.instance is not None and is_gone(base):
        return _destroyed(base, base.instance, wrong)
    if any(ill.finding.severity is not Severity.WARNING for ill in wrong):
        return _ailing(Wellness.SICK, wrong)
    if inventory.problem is not None:
        message = f"the GPU's health is unknown: {inventory.problem}"
        return DeviceHealth(
            wellness=Wellness.UNKNOWN, reason="DriverUnavailable", message=_fitting(message)
        )
    if device.gpu not in inventory.known():
        return _missing(device, inventory)
    return _ailing(Wellness.WELL, wrong) if wrong else WELL


def concerns(told: GpuCondition, device: Device) -> bool:
    """Tell whether a claim's device has what was noticed: of a MIG device only that one does."""
    if told.instance is None:
        return True
    ids = device.base.instance if isinstance(device.base, Mig) else None
    return ids is not None and ids.gpu_instance == told.instance.gpu_instance


def reported(records: Iterable[ClaimRecord], judge: Judge) -> tuple[Reported, ...]:
    """Return how the devices of claims are doing, each once, in a fixed order.

    Several claims can have one device: shares by capacity have its name, and so has admin access.
    """
    worst: dict[tuple[str, str], DeviceHealth] = {}
    for record in records:
        for entry in record.devices:
            key, health = (entry.pool, entry.name), judge(record, entry.device)
            if key not in worst or worst[key].wellness < health.wellness:
                worst[key] = health
    return tuple(
        Reported(pool=pool, device=name, health=worst[pool, name]) for pool, name in sorted(worst)
    )


def conditions(judge: Judge) -> Conditions:
    """Return what says of a device of a prepared claim that it is set up, and how it is doing."""

    def of(record: ClaimRecord, device: DeviceRecord) -> Sequence[Condition]:
        return (*prepared(record, device), condition(judge(record, device.device)))

    return of


def condition(health: DeviceHealth) -> Condition:
    """Return it as a condition of the device in the claim's status."""
    is_well = {Wellness.WELL: True, Wellness.SICK: False, Wellness.UNKNOWN: None}
    return Condition(
        type=HEALTHY,
        status=is_well[health.wellness],
        reason=health.reason,
        message=health.message,
    )


def _destroyed(device: Mig, ids: MigIds, wrong: Iterable[GpuCondition]) -> DeviceHealth:
    """Return it of a MIG device that is gone; what is wrong with its GPU is told beside it."""
    gone = (
        f"{ids.uuid} ({device.profile} of {device.gpu}) no longer exists: its GPU was "
        "reset, or something destroyed it; delete the pods that have it, so that they get a new "
        "one"
    )
    others = dict.fromkeys(_capitalized(ill.finding.text) for ill in wrong)
    return DeviceHealth(
        wellness=Wellness.SICK,
        reason="MigDeviceMissing",
        message=_fitting(". ".join((gone, *others))),
    )


def _ailing(wellness: Wellness, wrong: Iterable[GpuCondition]) -> DeviceHealth:
    findings = [ill.finding for ill in wrong]
    words = f"{findings[0].cause}-{findings[0].value}".rstrip("-").split("-")
    # What is wrong with a GPU and with the instance alone can be the same.
    texts = dict.fromkeys(finding.text for finding in findings)
    return DeviceHealth(
        wellness=wellness,
        reason="".join(word.capitalize() for word in words),
        message=_fitting(". ".join(_capitalized(text) for text in texts)),
    )


def _missing(device: Device, inventory: Inventory) -> DeviceHealth:
    """Return it of a device whose GPU the look did not find, and that was not known to be ill."""
    sick = "; ".join(f"at index {gpu.index}: {gpu.reason}" for gpu in inventory.sick)
    others = f"NVML cannot describe the GPU {sick}" if sick else "it was removed from the machine"
    return DeviceHealth(
        wellness=Wellness.SICK,
        reason="GpuMissing",
        message=_fitting(f"{device.gpu} is no longer found on this node: {others}"),
    )


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _fitting(text: str) -> str:
    """Return a text that is cut between characters, where it has to be cut."""
    data = text.encode(errors="replace")
    if len(data) <= MOST_BYTES:
        return data.decode()
    return data[: MOST_BYTES - 3].decode(errors="ignore") + "..."
