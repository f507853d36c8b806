"""Computes the health of the devices of claims, as one word and one reason. Pure.

In: a device in a claim's record, the latest look, and what is wrong with each GPU. Out: whether the
device is well, and a sentence about what is wrong; the same as entries for the kubelet, and as a
condition in the claim's status. Rules: a MIG device is affected only by what is wrong with the
whole GPU or its own instance, and it may be gone from a healthy GPU. A warning leaves a device
well. A remark is not reported, because any user of the device can cause it. What a look cannot find
out is unknown, unless the device was unhealthy before. Settings of taints change nothing here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum

from msgspec import Struct

from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.model.record import ClaimRecord, DeviceRecord
from dra_driver.claims.report.claim_status import Condition, Conditions, prepared
from dra_driver.devices.device import Device, DeviceUuid, Mig, MigIds
from dra_driver.devices.health.debounce import GpuCondition, GpuConditions
from dra_driver.devices.health.findings import Severity
from dra_driver.devices.model import Inventory, MigDevice

MOST_BYTES = 1024
"""The longest message that the kubelet passes on (pkg/kubelet/cm/dra/manager.go)."""

HEALTHY = "Healthy"
"""The type of the condition. Kubernetes itself names only one type, `Ready`, for a device that is
set up as requested; whether it then works is another question."""


class Wellness(IntEnum):
    """Whether a device works, from the best case to the worst."""

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

Gone = Mapping[tuple[ClaimUid, DeviceUuid], ClaimRecord]
"""Which MIG devices of claims are gone: by claim and device, the record of the claim that lost it.

A MIG device that is made again at the same place, for a claim that is prepared again, has the same
UUID."""

Judge = Callable[[ClaimRecord, Device], DeviceHealth]
"""Returns the health of a device of a claim."""


class Reported(Struct, frozen=True, kw_only=True):
    """The health of a device, by the name under which the kubelet knows it."""

    pool: str
    device: str
    health: DeviceHealth


def health_of(
    device: Device,
    inventory: Inventory,
    conditions: Mapping[str, GpuConditions],
    *,
    is_gone: bool = False,
) -> DeviceHealth:
    """Return how a device is doing, by the latest look.

    `conditions` are keyed by the GPU's UUID, the gravest first; `is_gone` says that a MIG device no
    longer exists.
    """
    wrong = [
        ill
        for ill in conditions.get(device.gpu, ())
        if concerns(ill, device) and ill.finding.severity is not Severity.REMARK
    ]
    base = device.base
    if is_gone and isinstance(base, Mig) and base.instance is not None:
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


def gone_devices(records: Iterable[ClaimRecord], inventory: Inventory, before: Gone) -> Gone:
    """Return which MIG devices of claims a look has not found.

    The claims have been prepared since before the look began: the driver has left their devices
    alone. If a GPU or its MIG devices cannot be listed, what was known `before` stays.
    """
    there = {
        gpu.uuid: {DeviceUuid(one.uuid) for one in gpu.mig_instances if isinstance(one, MigDevice)}
        for gpu in inventory.gpus
        if gpu.mig is None or gpu.mig.problem is None
    }
    gone: dict[tuple[ClaimUid, DeviceUuid], ClaimRecord] = {}
    for record in records:
        for device in (entry.device for entry in record.devices):
            uuid = device.uuid
            if uuid is None or not isinstance(device.base, Mig):
                continue
            key = record.ref.uid, uuid
            found = there.get(device.gpu)
            if before.get(key) is record if found is None else uuid not in found:
                gone[key] = record
    return gone


def concerns(told: GpuCondition, device: Device) -> bool:
    """Tell whether a GPU's condition affects a device; that of an instance affects only it."""
    if told.instance is None:
        return True
    ids = device.base.instance if isinstance(device.base, Mig) else None
    return ids is not None and ids.gpu_instance == told.instance.gpu_instance


def reported(records: Iterable[ClaimRecord], judge: Judge) -> tuple[Reported, ...]:
    """Return the health of the devices of claims, each device once, in a fixed order.

    Several claims can have one device, by shares of its capacity or admin access; the worst counts.
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
    """Return what gives a device's conditions: that it is set up, and how it is doing."""

    def of(record: ClaimRecord, device: DeviceRecord) -> Sequence[Condition]:
        return (*prepared(record, device), condition(judge(record, device.device)))

    return of


def condition(health: DeviceHealth) -> Condition:
    """Return a device's health as a condition in the claim's status."""
    is_well = {Wellness.WELL: True, Wellness.SICK: False, Wellness.UNKNOWN: None}
    return Condition(
        type=HEALTHY,
        status=is_well[health.wellness],
        reason=health.reason,
        message=health.message,
    )


def _destroyed(device: Mig, ids: MigIds, wrong: Iterable[GpuCondition]) -> DeviceHealth:
    """Return the health of a MIG device that is gone, including what is wrong with its GPU."""
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
    # A GPU and its instance can have findings with the same text.
    texts = dict.fromkeys(finding.text for finding in findings)
    return DeviceHealth(
        wellness=wellness,
        reason="".join(word.capitalize() for word in words),
        message=_fitting(". ".join(_capitalized(text) for text in texts)),
    )


def _missing(device: Device, inventory: Inventory) -> DeviceHealth:
    """Return the health of a device whose GPU was not found, and that was not known to be sick."""
    sick = "; ".join(f"at index {gpu.index}: {gpu.reason}" for gpu in inventory.sick)
    others = f"NVML cannot describe the GPU {sick}" if sick else "it was removed from the machine"
    return DeviceHealth(
        wellness=Wellness.SICK,
        reason="GpuMissing",
        message=_fitting(
            f"{device.gpu} is no longer found on this node: {others}; delete the pods that have "
            "it, and a claim that they did not get from a template"
        ),
    )


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _fitting(text: str) -> str:
    """Return a text, cut between characters if it is too long."""
    data = text.encode(errors="replace")
    if len(data) <= MOST_BYTES:
        return data.decode()
    return data[: MOST_BYTES - 3].decode(errors="ignore") + "..."
