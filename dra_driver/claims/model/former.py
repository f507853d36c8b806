"""Converts records of the previous format to the current one. Pure.

In and out: the payload of a record as JSON. The previous format is read for one more version, so
that a node can be upgraded under running pods. It had `realisations` for the MIG devices to make
and the MIG modes to turn off, and `plans` for sharing, with parts of GPUs instead of devices.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from dra_driver.errors import VersionError

_Json = dict[str, Any]


def lifted(payload: Mapping[str, Any]) -> _Json:
    """Return the payload of a record in the current format.

    Raises VersionError for a kind of something that this version does not know; KeyError,
    TypeError, ValueError or AttributeError if the payload is not that of a record.
    """
    devices, uid = [_entry(device) for device in payload["devices"]], payload["claim"]["uid"]
    bases = [device["device"]["base"] for device in devices]
    current: _Json = {
        "ref": payload["claim"],
        "bootId": payload["bootID"],
        "state": payload["state"],
        "devices": devices,
        "steps": [
            *(_mig_step(realisation, uid) for realisation in payload["realisations"]),
            *(step for plan in payload["plans"] for step in _sharing_steps(plan, bases)),
        ],
        "pending": [
            step for each in payload["pendingCleanups"] for step in _pending(each, bases, uid)
        ],
        "pods": payload["pods"],
        "groups": payload.get("podGroups", []),
        "takenOver": payload.get("takenOver", False),
        "askedParts": payload.get("askedParts", []),
    }
    return current | {"podClaimName": payload.get("podClaimName")}


def _entry(value: Mapping[str, Any]) -> _Json:
    return {
        "name": value["name"],
        "device": _device(value["device"]),
        "pool": value["pool"],
        "requestNames": value["requests"],
        "cdiDeviceIds": value["cdiDeviceIDs"],
        "adminAccess": value["adminAccess"],
        "shareId": value["shareID"],
        "subrequest": value.get("subRequest"),
    }


def _device(value: Mapping[str, Any]) -> _Json:
    match value["kind"]:
        case "gpu":
            return {"base": {"kind": "gpu", "gpu": value["gpu"]}}
        case "partition":
            return {"base": _mig(value)}
        case "mig":
            ids = {
                "gpuInstance": value["gpuInstance"],
                "computeInstance": value["computeInstance"],
                "uuid": value["uuid"],
                "madeHere": value["madeHere"],
            }
            return {"base": {**_mig(value), "instance": ids}}
        case "share":
            of = _device(value["of"])
            if "share" in of:
                raise TypeError("a share is of no other share")
            return {**of, "share": _share(value)}
        case kind:
            raise VersionError(
                f"it has a device of kind {kind!r}, which this version does not know"
            )


def _mig(value: Mapping[str, Any]) -> _Json:
    return {
        "kind": "mig",
        "gpu": value["gpu"],
        "profile": value["profile"],
        "profileId": value["profileID"],
        "placement": {"start": value["start"], "size": value["size"]},
    }


def _share(value: Mapping[str, Any]) -> _Json:
    if "shareID" not in value:
        return {"kind": "equal", "index": value["index"], "division": value["division"]}
    return {
        "kind": "consumed",
        "shareId": value["shareID"],
        "strategy": value["strategy"],
        "memoryMib": value["memoryMiB"],
        "cores": value["cores"],
        "shares": value.get("shares", 1),
    }


def _part(part: Mapping[str, Any], bases: list[_Json]) -> _Json:
    """Return the device for a part of a GPU; `bases` are the bases of the claim's devices."""
    share = {"share": _share(part["share"])} if "share" in part else {}
    if "start" not in part:
        return {"base": {"kind": "gpu", "gpu": part["gpu"]}, **share}
    placement = {"start": part["start"], "size": part["size"]}
    # A part did not have its profile; it is taken from the claim's device at that place.
    unknown = {"kind": "mig", "gpu": part["gpu"], "profile": "", "profileId": -1}
    there = (
        base for base in bases if base["gpu"] == part["gpu"] and base.get("placement") == placement
    )
    return {"base": next(there, {**unknown, "placement": placement}), **share}


def _pending(value: Mapping[str, Any], bases: list[_Json], uid: str) -> Iterator[_Json]:
    why = {"reason": value["reason"], "since": value.get("since")}
    if "plan" in value:
        yield from ({"of": step, **why} for step in _sharing_steps(value["plan"], bases))
    else:
        yield {"of": _mig_step(value["realisation"], uid), **why}


def _mig_step(value: Mapping[str, Any], uid: str) -> _Json:
    match value:
        case {"makeMIGDevices": places}:
            devices = [{"base": _mig(place)} for place in places]
            return {"step": "makeMigDevices", "devices": devices, "claim": uid}
        case {"gpu": gpu, "turnMIGModeOff": settings}:
            base = {"kind": "gpu", "gpu": gpu}
            step = {"step": "turnMigModeOff", "devices": [{"base": base}]}
            return step | {"restore": settings["restore"]}
        case _:
            raise VersionError(
                f"it has a realisation that this version does not know: {sorted(value)}"
            )


def _sharing_steps(plan: Mapping[str, Any], bases: list[_Json]) -> Iterator[_Json]:
    changes = plan["changes"]
    places = plan.get("places") or [{"gpu": gpu} for gpu in plan["gpus"]]
    devices = [_part(place, bases) for place in places]
    match plan["strategy"]:
        case "TimeSlicing":
            yield {
                "step": "timeSlice",
                "devices": devices,
                "interval": changes.get("interval", "Default"),
                "foundInterval": changes.get("foundInterval"),
                "foundMode": changes.get("computeMode", 0),
                "card": changes.get("device", ""),
            }
        case "MPS":
            yield {
                "step": "mpsDomain",
                "devices": devices,
                "domain": changes["domain"],
                "clients": changes["clients"],
                "tooHigh": changes.get("tooHigh", {}),
            }
        case "NvidiaMPS":
            daemon = {"daemon": changes["daemon"], "folder": changes["folder"]}
            yield {"step": "nvidiaMpsDaemon", "devices": devices, **daemon}
        case "Shares":
            yield from _share_steps(changes, devices)
        case strategy:
            raise VersionError(
                f"it has sharing strategy {strategy!r}, which this version does not know"
            )


def _share_steps(changes: Mapping[str, Any], devices: list[_Json]) -> Iterator[_Json]:
    limits = {
        key: {
            "taken": value["taken"],
            "count": value["of"],
            "consumedMemoryMib": value.get("consumedMemoryMiB", 0),
            "consumedCores": value.get("consumedCores", 0),
            "activeThreadPercentage": value["activeThreadPercentage"],
            "memoryMib": value["memoryMiB"],
        }
        for key, value in changes["shares"].items()
    }
    memory = changes.get("memory")
    if memory is None:  # written before other backends than MPS were known
        by = "MPS" if any(limit["memoryMib"] for limit in limits.values()) else "Nothing"
        memory = {"by": by, "ofDevice": by, "claim": changes["claim"]}
    yield {
        "step": "useShares",
        "devices": devices,
        "strategy": changes["strategy"],
        "limits": limits,
        "memory": memory,
    }
    if changes.get("domain") is None:
        return
    several = changes.get("containers", {})
    by_mps = memory["by"] == "MPS"
    clients = {
        key: {
            "activeThreadPercentage": limit["activeThreadPercentage"],
            "memoryMib": limit["memoryMib"] if by_mps else {},
        }
        for key, limit in limits.items()
    }
    clients |= {
        key: {
            "activeThreadPercentage": limit["activeThreadPercentage"],
            "memoryMib": limit["memoryMiB"],
            "isOfSeveral": True,
        }
        for key, limit in several.items()
    }
    yield {
        "step": "joinDomain",
        "devices": devices,
        "domain": changes["domain"],
        "claim": changes["claim"],
        "clients": clients,
    }
