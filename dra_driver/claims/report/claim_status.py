"""Computes `status.devices` of a ResourceClaim: what its status says about its devices. Pure.

In: the record of a prepared claim, what is known of its GPUs, and their health. Out: one entry for
each allocated device, as the API has it, and the object that applies the entries. An entry says
which device it is (dra-driver-nvidia-gpu#1456), which part the claim has, what limits it to that,
and in which condition it is. Rules: KEP-4817 and the API reference of resource.k8s.io/v1: an entry
is identified by driver, pool, device and share id; `data` is an object of at most 10 KiB.

The API server keeps the entries while the claim is allocated. So facts that neither the record nor
the GPU gives at the moment are taken from what was written before (`updated`).
"""

from collections.abc import Iterable, Mapping
from typing import Any, assert_never

from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.model.record import ClaimRecord, DeviceRecord
from dra_driver.claims.report.descriptions import description_of, strategy_of
from dra_driver.claims.report.device_health import DeviceHealth, HealthOf, HealthState
from dra_driver.devices.device import Device, Mig, Vfio, Whole
from dra_driver.devices.model import Inventory
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.devices.shares import ConsumedShare, EqualShare, Share
from dra_driver.host.words import cut
from resource_nvidia_com.printable import printable

DATA_VERSION = "v1"
"""The version of `data`. Fields may be added within a version; it changes when a field is removed
or gets another meaning. The names and meanings of `type`, `uuid` and `_CARD` are the same in every
version, and the ones planned for NVIDIA's own driver (its issue 1456 and pull request 1357)."""

_CARD = ("productName", "pciBusID", "driverVersion")
"""Facts that the GPU gives and a record does not have."""

_LONGEST_TEXT = 512
"""Bytes of a text in `data`: product names have at most 96, longer texts are reasons for people. So
all of `data` is far below the API's 10 KiB (AllocatedDeviceStatusDataMaxLength)."""

_LONGEST_MESSAGE = 1024
"""Bytes of a condition's message; the API would take 32 KiB."""

_READY = {"type": "Ready", "status": "True", "reason": "Prepared", "message": ""}
"""The condition of every device of a prepared claim, the only one that Kubernetes itself names: the
device is set up as requested. Whether it then works is another question: `Healthy`."""

_STATUS = {
    HealthState.HEALTHY: "True",
    HealthState.UNHEALTHY: "False",
    HealthState.UNKNOWN: "Unknown",
}

Object = dict[str, Any]
Key = tuple[str, str, str, str]
"""Driver, pool, device and share id, which identify an entry."""

Entries = Mapping[Key, Object]
"""What is said of a claim's devices."""


def entries(record: ClaimRecord, inventory: Inventory, health: HealthOf) -> Entries:
    """Return the entries for the devices of a prepared claim, without times, in a fixed order."""
    found: dict[Key, Object] = {}
    # A claim can have a device twice, with admin access and without; it gets one entry.
    for device in sorted(record.devices, key=lambda each: each.admin_access):
        entry: Object = {"driver": DRIVER_NAME, "pool": device.pool, "device": device.name}
        if device.share_id:
            entry["shareID"] = device.share_id
        if key_of(entry) not in found:
            found[key_of(entry)] = entry | {
                "conditions": [_READY, _healthy(health(record, device.device))],
                "data": _bounded(_data(record, device, inventory)),
            }
    return dict(sorted(found.items()))


def updated(wanted: Entries, stored: Entries, now: str) -> Entries:
    """Return the entries as they are to be at the API server, where `stored` are now.

    A condition that has not changed keeps its time; `now` is the time of others. Facts that the GPU
    does not give now stay as they were written before.
    """
    return {key: _updated(entry, stored.get(key, {}), now) for key, entry in wanted.items()}


def _updated(entry: Object, stored: Object, now: str) -> Object:
    since = {
        (each.get("type"), each.get("status")): each.get("lastTransitionTime")
        for each in stored.get("conditions") or ()
    }
    conditions = [
        {**each, "lastTransitionTime": since.get((each["type"], each["status"])) or now}
        for each in entry["conditions"]
    ]
    data, before = entry["data"], stored.get("data") or {}
    if before.get("uuid") == data.get("uuid"):  # else a MIG device was made again
        data = {name: before[name] for name in _CARD if name in before} | data
    return {**entry, "conditions": conditions, "data": data}


def applied(ref: ClaimRef, wanted: Entries, version: str = "") -> Object:
    """Return the object to apply to a claim's status; it replaces this driver's former entries.

    The UID in `ref` makes the API server refuse another claim of that name. `version` is the
    resourceVersion that the claim must still have; empty: any.
    """
    metadata = {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata | ({"resourceVersion": version} if version else {}),
        "status": {"devices": [*wanted.values()]} if wanted else {},
    }


def merged(body: Object, stored: Mapping[str, Any]) -> Object:
    """Return the object to merge into a claim's status when `body` cannot be applied.

    For an apply, the API server writes the whole status, which sorts the keys of opaque configs in
    the allocation. It then refuses that as a change of the allocation. A merge leaves the
    allocation alone, but replaces the whole list of entries. So other drivers' entries are repeated
    as they were found, and the resourceVersion restricts the merge to the claim as it was found.
    """
    others = [entry for entry in _all_entries(stored) if entry.get("driver") != DRIVER_NAME]
    version = str(stored["metadata"].get("resourceVersion", ""))
    return {
        **body,
        "metadata": {**body["metadata"], "resourceVersion": version},
        "status": {"devices": [*others, *body["status"].get("devices", ())]},
    }


def stored_entries(claim: Mapping[str, Any]) -> Entries:
    """Return what a ResourceClaim object says of this driver's devices."""
    ours = (entry for entry in _all_entries(claim) if entry.get("driver") == DRIVER_NAME)
    return {key_of(entry): entry for entry in ours}


def _all_entries(claim: Mapping[str, Any]) -> Iterable[Object]:
    status = claim.get("status")
    return (status.get("devices") if isinstance(status, Mapping) else None) or ()


def key_of(entry: Mapping[str, Any]) -> Key:
    """Return what identifies an entry of the API."""
    driver, pool, device, share = (
        str(entry.get(name) or "") for name in ("driver", "pool", "device", "shareID")
    )
    return driver, pool, device, share


def _healthy(health: DeviceHealth) -> Object:
    return {
        "type": "Healthy",
        "status": _STATUS[health.state],
        "reason": health.reason,
        "message": cut(printable(health.message), _LONGEST_MESSAGE),
    }


def _data(record: ClaimRecord, device: DeviceRecord, inventory: Inventory) -> Object:
    data: Object = {"version": DATA_VERSION, "type": str(device.device.kind)}
    if device.device.uuid is not None:
        data["uuid"] = device.device.uuid
    gpu = next((known for known in inventory.gpus if known.uuid == device.device.gpu), None)
    if gpu is not None:
        data |= {"productName": gpu.product_name, "pciBusID": gpu.pci_address}
        if inventory.driver_version is not None:
            data["driverVersion"] = inventory.driver_version
    data |= _part(device.device)
    data["sharing"] = _sharing(record, device)
    return data


def _part(device: Device) -> Object:
    """Return which part of its GPU a device is."""
    share = {} if device.share is None else {"share": _share(device.share)}
    base = device.base
    match base:
        case Whole() | Vfio():
            return share
        case Mig():
            # NVIDIA's driver is to report the first two beside the identity, under these names.
            known = {"parentUUID": base.gpu, "migProfile": base.profile}
            return {**known, "mig": _mig(base), **share}
        case _:
            assert_never(base)


def _mig(mig: Mig) -> Object:
    data: Object = {
        "parentUUID": mig.gpu,
        "profile": mig.profile,
        "start": mig.placement.start,
        "size": mig.placement.size,
    }
    if mig.instance is not None:
        data["gpuInstanceID"] = mig.instance.gpu_instance
        data["computeInstanceID"] = mig.instance.compute_instance
    return data


def _share(share: Share) -> Object:
    match share:
        case EqualShare(index=index, division=division):
            return {
                "index": index,
                "replicas": division.count,
                "resourceName": division.served_as,
            }
        case ConsumedShare():
            consumed = {"memoryMiB": share.memory_mib, "cores": share.cores}
            return {name: amount for name, amount in consumed.items() if amount}
        case _:
            assert_never(share)


def _sharing(record: ClaimRecord, device: DeviceRecord) -> Object:
    """Return how the device is shared, with its limits, in the words of `dra-driver status`."""
    share = device.device.share
    sharing: Object = {
        "strategy": strategy_of(record, device) if share is None else str(share.strategy)
    }
    for name, value in description_of(record, device).settings.items():
        sharing[name] = "nothing" if value is None else value
    return sharing


def _bounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _bounded(member) for name, member in value.items()}
    if isinstance(value, str):
        return cut(value, _LONGEST_TEXT)
    return value
