"""Devices in a record as JSON, and back. Pure.

In: a device as a record has it (claims/model/devices.py), or a part of a GPU. Out: JSON that later
versions of this driver still read, and the same from it.
"""

from collections.abc import Mapping
from typing import Any, assert_never

from dra_driver.claims.model.devices import (
    DeviceRecord,
    RecordedDevice,
    RecordedGpu,
    RecordedMig,
    RecordedPartition,
    RecordedShare,
)
from dra_driver.devices.kinds import GpuPart
from dra_driver.devices.model import GpuUuid, MigUuid, Placement
from dra_driver.devices.shares import ConsumableSlot, Division, ShareSlot, ShareStrategy, Slot
from dra_driver.errors import VersionError


def record_json(entry: DeviceRecord) -> dict[str, object]:
    """Return the record of a device as JSON."""
    return {
        "name": entry.name,
        "device": _device_json(entry.device),
        "pool": entry.pool,
        "requests": entry.request_names,
        "cdiDeviceIDs": entry.cdi_device_ids,
        "adminAccess": entry.admin_access,
        "shareID": entry.share_id,
        **({"subRequest": entry.subrequest} if entry.subrequest else {}),
    }


def record_of(value: Mapping[str, Any]) -> DeviceRecord:
    """Return what `record_json` made this of.

    Raises:
        VersionError: it is of a kind that is not known here.
        KeyError, TypeError, ValueError: it was made by something else.
    """
    return DeviceRecord(
        name=value["name"],
        device=_device(value["device"]),
        pool=value["pool"],
        request_names=tuple(value["requests"]),
        cdi_device_ids=tuple(value["cdiDeviceIDs"]),
        admin_access=value["adminAccess"],
        share_id=value["shareID"],
        subrequest=value.get("subRequest"),
    )


def partition_json(place: RecordedPartition) -> dict[str, object]:
    """Return the place of a MIG device as JSON."""
    return {
        "gpu": place.gpu,
        "profile": place.profile,
        "profileID": place.profile_id,
        "start": place.placement.start,
        "size": place.placement.size,
    }


def partition_of(value: Mapping[str, Any]) -> RecordedPartition:
    """Return what `partition_json` made this of; fails as `record_of` does."""
    return RecordedPartition(
        gpu=GpuUuid(value["gpu"]),
        profile=value["profile"],
        profile_id=int(value["profileID"]),
        placement=Placement(start=int(value["start"]), size=int(value["size"])),
    )


def _device_json(device: RecordedDevice) -> dict[str, object]:
    match device:
        case RecordedGpu():
            return {"kind": "gpu", "gpu": device.gpu}
        case RecordedPartition():
            return {"kind": "partition", **partition_json(device)}
        case RecordedMig():
            return {
                "kind": "mig",
                **partition_json(device.place),
                "gpuInstance": device.gpu_instance,
                "computeInstance": device.compute_instance,
                "uuid": device.uuid,
                "madeHere": device.made_here,
            }
        case RecordedShare():
            return {"kind": "share", "of": _device_json(device.of), **_slot_json(device.slot)}
        case _:
            assert_never(device)


def _device(value: Mapping[str, Any]) -> RecordedDevice:
    match value["kind"]:
        case "gpu":
            return RecordedGpu(gpu=GpuUuid(value["gpu"]))
        case "partition":
            return partition_of(value)
        case "mig":
            return RecordedMig(
                place=partition_of(value),
                gpu_instance=int(value["gpuInstance"]),
                compute_instance=int(value["computeInstance"]),
                uuid=MigUuid(value["uuid"]),
                made_here=bool(value["madeHere"]),
            )
        case "share":
            of = _device(value["of"])
            if isinstance(of, RecordedShare):
                raise TypeError("a share is of no other share")
            return RecordedShare(of=of, slot=_slot(value))
        case kind:
            raise VersionError(f"it has a device of kind {kind!r}, which is not known here")


def part_json(part: GpuPart) -> dict[str, object]:
    """Return a part of a GPU as JSON."""
    found: dict[str, object] = {"gpu": part.gpu}
    if part.placement is not None:
        found |= {"start": part.placement.start, "size": part.placement.size}
    if part.share is not None:
        found["share"] = _slot_json(part.share)
    return found


def part_of(value: Mapping[str, Any]) -> GpuPart:
    """Return what `part_json` made this of; fails as `record_of` does."""
    placement = None
    if "start" in value:
        placement = Placement(start=int(value["start"]), size=int(value["size"]))
    return GpuPart(
        gpu=GpuUuid(value["gpu"]),
        placement=placement,
        share=_slot(value["share"]) if "share" in value else None,
    )


def _slot_json(slot: Slot) -> dict[str, object]:
    match slot:
        case ShareSlot():
            return {"index": slot.index, "division": division_json(slot.division)}
        case ConsumableSlot():
            return {
                "shareID": slot.share_id,
                "strategy": str(slot.strategy),
                "memoryMiB": slot.memory_mib,
                "cores": slot.cores,
            }
        case _:
            assert_never(slot)


def division_json(division: Division) -> dict[str, object]:
    """Return how a device is divided as JSON."""
    return {
        "count": division.count,
        "strategy": str(division.strategy),
        "servedAs": division.served_as,
        "combines": division.combines,
        "freeCompute": division.free_compute,
        "together": division.together,
    }


def division_of(value: Mapping[str, Any]) -> Division:
    """Return what `division_json` made this of; fails as `record_of` does."""
    return Division(
        count=int(value["count"]),
        strategy=_strategy(value["strategy"]),
        served_as=value["servedAs"],
        combines=bool(value["combines"]),
        free_compute=bool(value["freeCompute"]),
        together=tuple(GpuUuid(uuid) for uuid in value["together"]),
    )


def _slot(value: Mapping[str, Any]) -> Slot:
    if "shareID" in value:
        return ConsumableSlot(
            share_id=value["shareID"],
            strategy=_strategy(value["strategy"]),
            memory_mib=int(value["memoryMiB"]),
            cores=int(value["cores"]),
        )
    return ShareSlot(index=int(value["index"]), division=division_of(value["division"]))


def _strategy(name: str) -> ShareStrategy:
    try:
        return ShareStrategy(name)
    except ValueError as error:
        raise VersionError(
            f"it has a share of strategy {name!r}, which is not known here"
        ) from error
