"""Computes `status.devices` of a ResourceClaim: what its status says about its devices. Pure.

In: the record of a prepared claim, what is known of its GPUs, and conditions. Out: one entry for
each allocated device, and the object that applies the entries. An entry says which device it is
(UUIDs, MIG ids, PCI address), which part the claim has, and what limits it to that. Rules: KEP-4817
and the API reference of resource.k8s.io/v1: an entry is identified by driver, pool, device and
share id; it has at most 8 conditions; `data` is an object of at most 10 KiB.

The API server keeps the entries while the claim is allocated. So facts that neither the record nor
the GPU gives at the moment are taken from what was written before (`kept`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, assert_never

from msgspec import Struct, field

from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.model.record import ClaimRecord, DeviceRecord
from dra_driver.claims.report.descriptions import description_of, strategy_of
from dra_driver.devices.device import Device, Mig, Vfio, Whole
from dra_driver.devices.model import Inventory
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.devices.shares import ConsumedShare, EqualShare, Share
from dra_driver.host.words import cut
from resource_nvidia_com.printable import printable

DATA_VERSION = "v1"
"""The version of `data`. Fields may be added within a version; it changes when a field is removed
or gets another meaning."""

MOST_CONDITIONS = 8
"""AllocatedDeviceStatusMaxConditions of the API."""

_LONGEST_TEXT = 512
"""Bytes of a text in `data`: product names have at most 96, longer texts are reasons for people. So
all of `data` is far below the API's 10 KiB (AllocatedDeviceStatusDataMaxLength)."""

_LONGEST_MESSAGE = 1024
"""Bytes of a condition's message; the API would take 32 KiB."""

_CARD = ("productName", "pciBusID", "driverVersion")
"""Facts that the GPU gives and a record does not have."""

IDENTITY = ("type", "uuid", *_CARD)
"""The fields that identify a device. Names and meanings are the same in every version of `data`,
and the ones planned for NVIDIA's own driver (its issue 1456 and pull request 1357)."""

Object = dict[str, Any]
Key = tuple[str, str, str, str]
"""Driver, pool, device and share id, which identify an entry."""


class Condition(Struct, frozen=True, kw_only=True):
    """One condition of a device. `status` is True, False, or None for unknown.

    `reason` is a word in CamelCase; `message` is for people.
    """

    type: str
    status: bool | None
    reason: str
    message: str = ""


Conditions = Callable[[ClaimRecord, DeviceRecord], Sequence[Condition]]
"""Returns the conditions of a device of a prepared claim."""


def prepared(record: ClaimRecord, device: DeviceRecord) -> Sequence[Condition]:
    """Return the condition that every device of a prepared claim has."""
    del record, device
    return (Condition(type="Ready", status=True, reason="Prepared"),)


class Entry(Struct, frozen=True, kw_only=True):
    """What the claim's status says about one device."""

    key: Key
    data: Mapping[str, object]
    conditions: tuple[Condition, ...] = field(default=())


def entries(
    record: ClaimRecord, inventory: Inventory, conditions: Conditions = prepared
) -> tuple[Entry, ...]:
    """Return the entries for the devices of a prepared claim, in a fixed order."""
    told: dict[Key, Entry] = {}
    # A claim can have a device twice, with admin access and without; it gets one entry.
    for device in sorted(record.devices, key=lambda entry: entry.admin_access):
        key = (DRIVER_NAME, device.pool, device.name, device.share_id or "")
        told.setdefault(
            key,
            Entry(
                key=key,
                data=_bounded(_data(record, device, inventory)),
                conditions=_distinct(conditions(record, device)),
            ),
        )
    return tuple(told[key] for key in sorted(told))


def applied(
    ref: ClaimRef, wanted: Iterable[Entry], stored: Iterable[Object], now: str, version: str = ""
) -> Object:
    """Return the object to apply to a claim's status; it replaces this driver's former entries.

    The UID in `ref` makes the API server refuse another claim of that name. `stored` are the
    present entries, which say since when each condition has been as it is; `now` is the time of new
    ones. `version` is the resourceVersion that the claim must still have; empty: any.
    """
    since = {
        (key_of(entry), each.get("type"), each.get("status")): each.get("lastTransitionTime")
        for entry in stored
        for each in entry.get("conditions") or ()
    }

    devices = _devices(wanted, since, now)
    metadata = {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata | ({"resourceVersion": version} if version else {}),
        "status": {"devices": devices} if devices else {},
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


def stored_entries(claim: Mapping[str, Any]) -> tuple[Object, ...]:
    """Return what a ResourceClaim object says of this driver's devices."""
    return tuple(entry for entry in _all_entries(claim) if entry.get("driver") == DRIVER_NAME)


def understood(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of an entry's `data` that this version knows.

    For data of another version or driver, those are the fields that identify the device.
    """
    data: Mapping[str, Any] = entry.get("data") or {}
    if data.get("version") == DATA_VERSION:
        return data
    return {name: data[name] for name in IDENTITY if name in data}


def _all_entries(claim: Mapping[str, Any]) -> tuple[Object, ...]:
    status = claim.get("status")
    return tuple((status.get("devices") if isinstance(status, Mapping) else None) or ())


def kept(wanted: Sequence[Entry], stored: Iterable[Object]) -> tuple[Entry, ...]:
    """Return the entries, with facts that a GPU does not give now as they were written before."""
    before = {key_of(entry): understood(entry) for entry in stored}

    def completed(entry: Entry) -> Entry:
        data = before.get(entry.key, {})
        if data.get("uuid") != entry.data.get("uuid"):
            return entry  # a MIG device was made again
        known = {name: data[name] for name in _CARD if name in data and name not in entry.data}
        return Entry(key=entry.key, data={**entry.data, **known}, conditions=entry.conditions)

    return tuple(map(completed, wanted))


def are_stored(wanted: Iterable[Entry], stored: Iterable[Object]) -> bool:
    """Tell whether the API server has these entries and no others of this driver."""

    def facts(entry: Object) -> object:
        conditions = {
            (each.get("type"), each.get("status"), each.get("reason"), each.get("message", ""))
            for each in entry.get("conditions") or ()
        }
        return entry.get("data") or {}, conditions

    asked = {key_of(device): facts(device) for device in _devices(wanted, {}, "")}
    return asked == {key_of(entry): facts(entry) for entry in stored}


def key_of(entry: Mapping[str, Any]) -> Key:
    """Return what identifies an entry of the API."""
    driver, pool, device, share = (
        str(entry.get(name) or "") for name in ("driver", "pool", "device", "shareID")
    )
    return driver, pool, device, share


def _devices(
    wanted: Iterable[Entry], since: Mapping[tuple[Key, object, object], str], now: str
) -> list[Object]:

    def condition(key: Key, told: Condition) -> Object:
        status = "Unknown" if told.status is None else str(told.status)
        return {
            "type": told.type,
            "status": status,
            "reason": told.reason,
            "message": cut(printable(told.message), _LONGEST_MESSAGE),
            "lastTransitionTime": since.get((key, told.type, status)) or now,
        }

    return [
        {
            **_identity(entry.key),
            "conditions": [condition(entry.key, each) for each in entry.conditions],
            "data": dict(entry.data),
        }
        for entry in wanted
    ]


def _distinct(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return one condition of each type, and at most as many as the API accepts."""
    return tuple({condition.type: condition for condition in conditions}.values())[:MOST_CONDITIONS]


def _identity(key: Key) -> Object:
    driver, pool, device, share = key
    identity = {"driver": driver, "pool": pool, "device": device}
    return identity | ({"shareID": share} if share else {})


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
