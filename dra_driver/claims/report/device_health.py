"""Computes the health of the devices of claims, as one word and one reason. Pure.

In: a device in a claim's record, the latest look, and what is wrong with each GPU. Out: whether the
device is healthy, and a sentence about what is wrong, for the kubelet and the claim's status.
Rules: a MIG device is affected only by what is wrong with the whole GPU or its own instance, and it
may be gone from a healthy GPU. A warning leaves a device healthy. A remark is not reported, because
any user of the device can cause it. What a look cannot find out is unknown, unless the device was
unhealthy before. Settings of taints change nothing here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum

from msgspec import Struct

from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.devices.device import Device, DeviceUuid, Mig, MigIds
from dra_driver.devices.health.debounce import GpuCondition, GpuConditions
from dra_driver.devices.health.findings import Severity
from dra_driver.devices.model import Inventory, MigDevice
from dra_driver.host.words import cut

MOST_BYTES = 1024
"""The longest message that the kubelet passes on (pkg/kubelet/cm/dra/manager.go)."""


class HealthState(IntEnum):
    """Whether a device works, from the best case to the worst."""

    HEALTHY = 0
    UNKNOWN = 1
    UNHEALTHY = 2


class DeviceHealth(Struct, frozen=True, kw_only=True):
    """The health of a device.

    `reason` is a word in CamelCase; `message` is for people, empty if there is nothing to say.
    """

    state: HealthState
    reason: str
    message: str = ""


WELL = DeviceHealth(state=HealthState.HEALTHY, reason="Well")

Gone = Mapping[tuple[ClaimUid, DeviceUuid], ClaimRecord]
"""Which MIG devices of claims are gone: by claim and device, the record of the claim that lost it.

A MIG device that is made again at the same place, for a claim that is prepared again, has the same
UUID."""

HealthOf = Callable[[ClaimRecord, Device], DeviceHealth]
"""Returns the health of a device of a claim."""


Reported = Mapping[tuple[str, str], DeviceHealth]
"""The health of devices, by pool and name, under which the kubelet knows them."""


def health_of(
    device: Device,
    inventory: Inventory,
    conditions: Mapping[str, GpuConditions],
    *,
    is_gone: bool = False,
) -> DeviceHealth:
    """Return the health of a device, by the latest look.

    `conditions` are keyed by the GPU's UUID, the gravest first; `is_gone` says that a MIG device no
    longer exists.
    """
    wrong = [
        condition
        for condition in conditions.get(device.gpu, ())
        if concerns(condition, device) and condition.finding.severity is not Severity.REMARK
    ]
    base = device.base
    if is_gone and isinstance(base, Mig) and base.instance is not None:
        return _destroyed(base, base.instance, wrong)
    if any(condition.finding.severity is not Severity.WARNING for condition in wrong):
        return _with_conditions(HealthState.UNHEALTHY, wrong)
    if inventory.problem is not None:
        message = f"the GPU's health is unknown: {inventory.problem}"
        return _health(HealthState.UNKNOWN, "DriverUnavailable", message)
    if device.gpu not in inventory.known():
        return _missing(device, inventory)
    return _with_conditions(HealthState.HEALTHY, wrong) if wrong else WELL


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


def concerns(condition: GpuCondition, device: Device) -> bool:
    """Tell whether a GPU's condition affects a device; that of an instance affects only it."""
    if condition.instance is None:
        return True
    ids = device.base.instance if isinstance(device.base, Mig) else None
    return ids is not None and ids.gpu_instance == condition.instance.gpu_instance


def reported(records: Iterable[ClaimRecord], health: HealthOf) -> Reported:
    """Return the health of the devices of claims, each device once, in a fixed order.

    Several claims can have one device, by shares of its capacity or admin access; the worst counts.
    """
    worst: dict[tuple[str, str], DeviceHealth] = {}
    for record in records:
        for entry in record.devices:
            key, found = (entry.pool, entry.name), health(record, entry.device)
            if key not in worst or worst[key].state < found.state:
                worst[key] = found
    return dict(sorted(worst.items()))


def _destroyed(device: Mig, ids: MigIds, wrong: Iterable[GpuCondition]) -> DeviceHealth:
    """Return the health of a MIG device that is gone, including what is wrong with its GPU."""
    gone = (
        f"{ids.uuid} ({device.profile} of {device.gpu}) no longer exists: its GPU was "
        "reset, or something destroyed it; delete the pods that have it, so that they get a new "
        "one"
    )
    return _health(HealthState.UNHEALTHY, "MigDeviceMissing", ". ".join((gone, *_texts(wrong))))


def _with_conditions(state: HealthState, wrong: Sequence[GpuCondition]) -> DeviceHealth:
    gravest = wrong[0].finding
    words = f"{gravest.cause}-{gravest.value}".rstrip("-").split("-")
    return _health(state, "".join(map(str.capitalize, words)), ". ".join(_texts(wrong)))


def _missing(device: Device, inventory: Inventory) -> DeviceHealth:
    """Return the health of a device whose GPU was not found, and that was healthy before."""
    sick = "; ".join(f"at index {gpu.index}: {gpu.reason}" for gpu in inventory.sick)
    others = f"NVML cannot describe the GPU {sick}" if sick else "it was removed from the machine"
    message = (
        f"{device.gpu} is no longer found on this node: {others}; delete the pods that have "
        "it, and a claim that they did not get from a template"
    )
    return _health(HealthState.UNHEALTHY, "GpuMissing", message)


def _texts(wrong: Iterable[GpuCondition]) -> Iterable[str]:
    """Return sentences about conditions; a GPU and its instance can have some with one text."""
    texts = (condition.finding.text for condition in wrong)
    return dict.fromkeys(text[:1].upper() + text[1:] for text in texts)


def _health(state: HealthState, reason: str, message: str) -> DeviceHealth:
    if len(message.encode(errors="replace")) > MOST_BYTES:
        message = f"{cut(message, MOST_BYTES - 3)}..."
    return DeviceHealth(state=state, reason=reason, message=cut(message, MOST_BYTES))
